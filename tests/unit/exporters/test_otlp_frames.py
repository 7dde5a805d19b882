"""Intervals of a recording: an event belongs to the one in which it ended, and none is lost."""

from __future__ import annotations

import pytest
from made_recordings import START, Made
from metric_streams import random_recording

from memexport.errors import UsageError
from memexport.exporters._otel_fold import FoldOptions
from memexport.exporters._otlp_frames import Frames
from memexport.model import EventKind, RecordingEnd

ALLOCATED = "memexport.memory.allocated"


def moments(made, interval_ns, batch_size=1000):
    """All frames, each moment's in a list."""
    frames = Frames(made.info, made.tables, FoldOptions(), interval_ns)
    found = [moment for batch in made.batches(batch_size) for moment in frames.add(batch)]
    return [*found, *frames.end(made.end)]


def values(made, interval_ns, name=ALLOCATED, batch_size=1000):
    """The value of the metric's only series by time since the start."""
    return {
        frame.time_unix_ns - START: int(numbers.values[0])
        for moment in moments(made, interval_ns, batch_size)
        for frame in moment
        for numbers in frame.numbers
        if numbers.metric.name == name
    }


def levels(*events):
    made = Made()
    for begin, duration, allocated in events:
        made.operator("aten.mm", begin, duration, device=0, rank=0, allocated_bytes=allocated)
    return made


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
def test_an_event_belongs_to_the_interval_in_which_it_ended(batch_size):
    made = levels((5, 5, 1), (99, 1, 2), (40, 61, 3), (150, -1, 4), (190, 20, 5))
    assert values(made, 100, batch_size=batch_size) == {100: 2, 200: 4, 210: 5}


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_of_a_time_without_events_only_the_end_is_shown(batch_size):
    made = levels((10, 0, 7), (10_050, 0, 8), (10_150, 0, 9))
    assert values(made, 100, batch_size=batch_size) == {100: 7, 10_000: 7, 10_100: 8, 10_150: 9}


def test_a_peak_is_that_of_its_interval():
    made = levels((10, 0, 7), (20, 0, 90), (30, 0, 5), (110, 0, 6), (210, 0, 2))
    assert values(made, 100, ALLOCATED + ".peak") == {100: 90, 200: 6, 210: 6}


def test_totals_grow_from_the_beginning_of_the_recording():
    made = levels(*((number * 40, 1, 1) for number in range(10)))
    assert values(made, 100, "memexport.operators") == {100: 3, 200: 5, 300: 8, 361: 10}


def test_times_never_go_back_and_are_after_the_beginning():
    made = levels((500, 0, 1), (100, 0, 2), (0, 0, 3))
    made.add(EventKind.SAMPLE, -50, device=0, rank=0, allocated_bytes=4)
    made.marker("peak", 3, device=0, rank=0, allocated_bytes=10**9)
    assert values(made, 100) == {500: 4}
    assert values(levels((0, 0, 3)), 100) == {1: 3}


def test_every_moment_has_a_frame_of_each_process_that_was_seen():
    made = random_recording(ranks=(0, 3))
    found = moments(made, 20_000)
    assert {tuple(frame.rank for frame in moment) for moment in found[1:-1]} == {(0, 3)}
    # At the end, what was counted over all of them is nobody's.
    assert [frame.rank for frame in found[-1]] == [-1, 0, 3]
    assert len({frame.time_unix_ns for moment in found for frame in moment}) == len(found)


def test_the_end_says_what_is_known_only_then():
    made = levels((10, 0, 7))
    made.end = RecordingEnd(dropped_events=5)
    assert values(made, 100, "memexport.events.dropped") == {10: 5}


def test_histograms_hold_everything_since_the_beginning():
    made = random_recording(devices=1)
    counts = [
        sum(b.count for h in frame.histograms if h.metric.unit == "By" for b in h.buckets)
        for moment in moments(made, 20_000)
        for frame in moment
    ]
    assert counts == sorted(counts)
    allocations = sum(row["kind"] == EventKind.ALLOCATION for row in made.rows)
    steps = sum(row["kind"] == EventKind.SPAN for row in made.rows)
    assert counts[-1] == allocations + steps


def test_a_recording_that_does_not_say_when_it_began_begins_with_its_first_event():
    made = levels((70, 5, 1), (120, 0, 2))
    made.info = type(made.info)(clock="unix", devices=made.info.devices)
    assert values(made, 100) == {120: 2}


def test_an_empty_recording_has_no_frames():
    assert moments(Made(), 100) == []


def test_a_recording_without_a_clock_is_refused():
    with pytest.raises(UsageError, match="no clock") as error:
        moments(Made(clock="index"), 100)
    assert "pftrace" in error.value.hint


def test_an_interval_needs_a_length():
    with pytest.raises(UsageError, match="interval"):
        moments(Made(), 0)
