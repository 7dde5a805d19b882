"""What callbacks see: one moment in all of a collection, and no reader misses a peak for another."""

from __future__ import annotations

import os
import threading

import pytest
from made_recordings import Made
from metric_streams import random_recording

from memexport.exporters import _otel_metrics as metrics
from memexport.exporters._otel_feed import Feed
from memexport.exporters._otel_fold import FoldOptions
from memexport.model import EventKind, RecordingEnd

CUDA = ((metrics.DEVICE, "cuda:0"),)


def levels(*allocated):
    """A recording of nothing but a counter."""
    made = Made()
    for number, level in enumerate(allocated):
        made.add(EventKind.SAMPLE, number, device=0, rank=0, allocated_bytes=level)
    return made


def feed_of(made, record=lambda _: None):
    return Feed(made.info, made.tables, FoldOptions(), record)


def in_a_thread(function):
    """Its result, from a thread of its own."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


class Reader:
    """Collects in one and the same thread, as a metric reader does."""

    def __init__(self, feed):
        self._feed, self._asked, self._answered = feed, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            self._asked.wait()
            self._asked.clear()
            self._found = {metric: self._feed.values(metric) for metric in metrics.METRICS}
            self._answered.set()

    def collect(self):
        """Every metric's series."""
        self._asked.set()
        self._answered.wait(10)
        self._answered.clear()
        return self._found


def test_all_metrics_of_a_collection_are_of_one_moment():
    made = random_recording(devices=1)
    feed = feed_of(made)
    for batch in made.batches(20):
        feed.add(batch)
        allocated = feed.values(metrics.ALLOCATED)
        feed.add(made.batches(20)[0].select(slice(0, 0)))
        usage = feed.values(metrics.USAGE)
        assert sum(usage.values()) == sum(allocated.values())


def test_what_happens_between_two_callbacks_waits_for_the_next_collection():
    made = levels(100, 700)
    first, second = made.batches(1)
    feed = feed_of(made)
    feed.add(first)
    assert feed.values(metrics.ALLOCATED) == {CUDA: 100}
    feed.add(second)
    assert feed.values(metrics.ALLOCATED_PEAK) == {CUDA: 100}
    assert feed.values(metrics.ALLOCATED) == {CUDA: 700}


def test_a_collection_that_stopped_half_way_does_not_spoil_the_next():
    made = levels(100, 700)
    first, second = made.batches(1)
    feed = feed_of(made)
    feed.add(first)
    for metric in metrics.METRICS[:3]:
        feed.values(metric)
    feed.add(second)
    assert feed.values(metrics.METRICS[0]) == {CUDA: 700}


def test_two_readers_each_see_every_peak():
    made = levels(100, 900, 50, 60, 70)
    batches = made.batches(1)
    feed = feed_of(made)
    often, seldom = Reader(feed), Reader(feed)
    feed.add(batches[0])
    assert often.collect()[metrics.ALLOCATED_PEAK] == {CUDA: 100}
    assert seldom.collect()[metrics.ALLOCATED_PEAK] == {CUDA: 100}
    for batch, peak in zip(batches[1:], [900, 900, 60, 70], strict=True):
        feed.add(batch)
        assert often.collect()[metrics.ALLOCATED_PEAK] == {CUDA: peak}
    assert seldom.collect()[metrics.ALLOCATED_PEAK] == {CUDA: 900}
    assert seldom.collect()[metrics.ALLOCATED_PEAK] == {CUDA: 70}


def test_a_reader_in_ever_new_threads_sees_the_peak_since_anyones_last_collection():
    made = levels(100, 900, 50, 60)
    feed, peaks = feed_of(made), []
    for batch in made.batches(1):
        feed.add(batch)
        peaks.append(in_a_thread(lambda: feed.values(metrics.ALLOCATED_PEAK))[CUDA])
    assert peaks == [100, 900, 900, 60]


def test_what_was_counted_is_recorded_once_when_a_collection_begins():
    made = random_recording(devices=1)
    recorded = []
    feed = feed_of(made, recorded.append)
    for batch in made.batches():
        feed.add(batch)
    assert recorded == []
    feed.values(metrics.ALLOCATED)
    counted = len(recorded)
    assert counted > 0
    feed.values(metrics.USAGE)
    feed.values(metrics.ALLOCATED)
    assert len(recorded) == counted


def test_who_knows_is_asked_for_retries_and_failures_at_each_collection():
    made = levels(100)
    feed = feed_of(made)
    feed.add(made.batches()[0])
    feed.watch(lambda: RecordingEnd(alloc_retries=4, ooms=2, dropped_events=1))
    assert feed.values(metrics.RETRIES) == {CUDA: 4}
    assert feed.values(metrics.OOMS) == {CUDA: 2}
    assert feed.values(metrics.DROPPED) == {(): 1}


def test_the_process_says_what_it_takes():
    (resident,) = feed_of(levels(1)).values(metrics.PROCESS).values()
    assert 10**6 < resident < 10**12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_no_series():
    made = levels(100)
    feed = feed_of(made)
    feed.add(made.batches()[0])
    child = os.fork()
    if child == 0:
        os._exit(0 if feed.values(metrics.ALLOCATED) == {} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert feed.values(metrics.ALLOCATED) == {CUDA: 100}
