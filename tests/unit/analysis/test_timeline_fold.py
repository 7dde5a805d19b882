"""A timeline hides no peak: its numbers equal those of a summary, which has an oracle of its own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from bench.synthetic import synthetic_batches
from event_streams import batch_of, event, streams
from hypothesis import given, settings
from hypothesis import strategies as st

from memexport.analysis.group_bytes import Group, Maker
from memexport.analysis.palette import category_label
from memexport.analysis.summary import SummaryFold
from memexport.analysis.time_bins import BINS
from memexport.analysis.timeline import coarser
from memexport.analysis.timeline_fold import MAX_MARKS, TimelineFold
from memexport.model import Category, Device, EventKind, Phase, RecordingEnd, RecordingInfo, Tables

INFO = RecordingInfo(devices=[Device("cuda", 0), Device("cuda", 1), Device("cpu")])
ALLOCATION, RELEASE, SAMPLE = EventKind.ALLOCATION, EventKind.RELEASE, EventKind.SAMPLE


def folds_of(stream, cuts=(), info=INFO):
    """The timeline and the summary of a stream, cut before the events at these indices."""
    tables = Tables()
    folds = TimelineFold(info, tables), SummaryFold(info, tables)
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    for begin, stop in itertools.pairwise(bounds):
        batch = batch_of(stream[begin:stop], tables)
        for fold in folds:
            fold.add(batch)
    return tuple(fold.result(RecordingEnd()) for fold in folds)


def device_of(*stream, cuts=()):
    """The timeline of device 0."""
    return folds_of(list(stream), cuts)[0].devices[0]


def known(device):
    """Its bins of which something is known."""
    return device.samples[device.samples["allocated_bytes"] >= 0]


def by_category(samples):
    """Of one moment, as a summary has it."""
    names = (category_label(number).replace(" ", "_") for number in range(len(samples["categories"])))
    return {name: int(size) for name, size in zip(names, samples["categories"], strict=True) if size}


def modules_of(device):
    """What the peak lists, by module."""
    held = {}
    for number, size in device.peak.groups:
        group = device.groups[number]
        if group.maker is Maker.MODULE:
            held[group.name] = held.get(group.name, 0) + size
    return held


def assert_sums_are_right(moment):
    listed = sum(size for _, size in moment.groups)
    total = listed + moment.others_bytes + moment.unexplained_bytes
    assert total == moment.allocated_bytes or (
        total > moment.allocated_bytes and not moment.unexplained_bytes
    )


@settings(max_examples=300)
@given(streams, st.lists(st.integers(0, 80), max_size=4))
def test_every_device_has_the_peak_of_its_summary_with_its_categories(stream, cuts):
    timeline, summary = folds_of(stream, cuts)
    for device in timeline.devices:
        expected = summary.devices[device.name]
        if expected.allocated is None or expected.allocated.start is None:
            continue
        assert device.peak.allocated_bytes == expected.allocated.peak
        assert device.peak.operator == expected.peak_operator
        assert modules_of(device) == {m.module: m.bytes for m in expected.modules_at_peak if m.module}
        for moment in (device.peak, *device.moments):
            assert_sums_are_right(moment)


@settings(max_examples=300)
@given(streams, st.lists(st.integers(0, 80), max_size=4))
def test_where_the_batches_are_cut_does_not_show(stream, cuts):
    # Bins begin at the first batch's earliest event.
    stream = [event(EventKind.SPAN, device=-1), *stream]
    whole, cut = folds_of(stream)[0], folds_of(stream, cuts)[0]
    assert (whole.bins, whole.bin_ns, whole.marks) == (cut.bins, cut.bin_ns, cut.marks)
    for one, other in zip(whole.devices, cut.devices, strict=True):
        assert (one.peak.allocated_bytes, one.categories) == (other.peak.allocated_bytes, other.categories)
        assert np.array_equal(one.samples["allocated_bytes"], other.samples["allocated_bytes"])
        assert np.array_equal(one.samples["categories"], other.samples["categories"])
        assert np.array_equal(one.is_held, other.is_held)


@pytest.fixture(scope="module")
def long():
    """The folds of a synthetic recording of 300 000 events, and the batches they were made of."""
    info, tables, made = synthetic_batches(100_000)
    batches = list(made)
    folds = TimelineFold(info, tables), SummaryFold(info, tables)
    for batch in batches:
        for fold in folds:
            fold.add(batch)
    return *(fold.result(RecordingEnd()) for fold in folds), batches


def test_a_long_recording_has_few_bins_of_which_each_is_exact(long):
    timeline, _, batches = long
    (device,) = timeline.devices
    assert BINS // 2 <= timeline.bins <= BINS
    time_ns = np.concatenate([b.time_unix_ns + np.maximum(b.duration_ns, 0) for b in batches])
    value = np.concatenate([b.allocated_bytes for b in batches])
    inside = np.concatenate([(b.device >= 0) & (b.kind != EventKind.MARKER) for b in batches])
    bins = (time_ns[inside] - batches[0].time_unix_ns.min()) // timeline.bin_ns
    highest = np.full(timeline.bins, -1)
    np.maximum.at(highest, bins, value[inside])
    assert np.array_equal(device.is_held, highest < 0)
    assert np.array_equal(device.samples["allocated_bytes"][highest >= 0], highest[highest >= 0])
    lowest = np.full(timeline.bins, 2**62)
    np.minimum.at(lowest, bins, value[inside])
    assert np.array_equal(device.lowest_bytes[highest >= 0], lowest[highest >= 0])


def test_a_long_recording_has_the_categories_modules_and_operator_of_its_peak(long):
    timeline, summary, _ = long
    (device,), expected = timeline.devices, summary.devices["cuda:0"]
    row = device.samples[device.samples["allocated_bytes"].argmax()]
    assert by_category(row) == expected.categories_at_peak
    assert (device.peak.operator, device.peak.module) == (expected.peak_operator, expected.peak_module)
    held = {}
    for group, size in device.peak.groups:
        name = device.groups[group].name
        held[name] = held.get(name, 0) + size
    largest = expected.modules_at_peak[1]
    assert held[largest.module] == largest.bytes
    assert device.peak.others_bytes == 0


def test_what_a_moment_lists_is_what_its_bin_stacks(long):
    timeline, _, _ = long
    (device,) = timeline.devices
    row = device.samples[(device.peak.time_ns - timeline.first_ns) // timeline.bin_ns]
    stacked = np.zeros(max(Category) + 1, np.int64)
    for group, size in device.peak.groups:
        stacked[device.groups[group].category] += size
    stacked[Category.UNATTRIBUTED] += device.peak.unexplained_bytes
    assert np.array_equal(stacked, row["categories"])
    assert stacked.sum() == device.peak.allocated_bytes
    assert all(len(moment.groups) <= 20 for moment in device.moments)


def test_the_moments_of_a_long_recording_hold_every_peak_of_a_step(long):
    timeline, _, batches = long
    (device,) = timeline.devices
    assert 200 < len(device.moments) < 600
    assert [m.time_ns for m in device.moments] == sorted(m.time_ns for m in device.moments)
    highest = {}
    for batch in batches:
        for step, value in zip(batch.step.tolist(), batch.allocated_bytes.tolist(), strict=True):
            highest[step] = max(highest.get(step, -1), value)
    of_moments = {m.allocated_bytes for m in device.moments}
    assert {highest[step] for step in highest if step >= 0} <= of_moments


@pytest.mark.parametrize("factor", [2, 3, 16])
def test_coarser_bins_keep_the_highest_moment_of_those_they_were(long, factor):
    (device,) = long[0].devices
    allocated = device.samples["allocated_bytes"]
    fewer = coarser(device, factor)
    assert len(fewer.samples) == -(-len(allocated) // factor)
    for number, row in enumerate(fewer.samples):
        part = allocated[number * factor : (number + 1) * factor]
        assert row["allocated_bytes"] == part.max()
        assert row["categories"].sum() == part.max()


def test_what_lasts_is_held_until_the_next_event():
    device = device_of(
        event(ALLOCATION, address=1, size_bytes=5, allocated_bytes=5, time_unix_ns=0),
        event(ALLOCATION, address=2, size_bytes=4, allocated_bytes=9, time_unix_ns=1_000),
        event(RELEASE, address=2, size_bytes=4, allocated_bytes=5, time_unix_ns=1_020),
        event(SAMPLE, allocated_bytes=5, time_unix_ns=100_000),
    )
    values = device.samples["allocated_bytes"]
    assert values[0] == 5
    assert values.max() == 9
    assert values[values.argmax() + 1] == 5
    assert set(values.tolist()) == {5, 9}
    assert [moment.allocated_bytes for moment in device.moments] == [5, 9, 5, 5]
    assert device.is_held.sum() == len(values) - 3


def test_before_its_first_event_nothing_is_known_of_a_device():
    first = event(SAMPLE, allocated_bytes=3, time_unix_ns=0, device=1)
    second = event(SAMPLE, allocated_bytes=7, time_unix_ns=1_000, device=0)
    device = device_of(first, second)
    assert device.samples["allocated_bytes"][0] == -1
    assert device.samples["allocated_bytes"][-1] == 7


def test_events_of_threads_that_are_out_of_step_fall_into_their_own_bins():
    times = [0, 9_000, 3_000, 12_000]
    stream = [
        event(SAMPLE, allocated_bytes=10 + number, time_unix_ns=time) for number, time in enumerate(times)
    ]
    timeline = folds_of(stream)[0]
    values = timeline.devices[0].samples["allocated_bytes"]
    assert [int(values[time // timeline.bin_ns]) for time in times] == [10, 11, 12, 13]


def test_a_group_is_named_after_its_module_else_the_own_code_else_the_operator():
    rows = [
        {"module": "layers.0", "stack": ["train.py:1:main"], "name": "aten.mm.default"},
        {"stack": ["/usr/lib/python3/x.py:3:lib", "train.py:1:main"], "name": "aten.mm.default"},
        {"name": "aten.mm.default"},
        {},
    ]
    stream = [
        event(ALLOCATION, address=n + 1, size_bytes=10 - n, category=Category.OTHER, time_unix_ns=n, **row)
        for n, row in enumerate(rows)
    ]
    device = device_of(*stream)
    assert [device.groups[group] for group, _ in device.peak.groups] == [
        Group(Category.OTHER, Maker.MODULE, "layers.0"),
        Group(Category.OTHER, Maker.CODE, "train.py:1 main"),
        Group(Category.OTHER, Maker.OPERATOR, "aten.mm.default"),
        Group(Category.OTHER, Maker.UNKNOWN, None),
    ]


def test_without_a_counter_what_is_tracked_is_taken_for_it():
    device = device_of(event(ALLOCATION, address=1, size_bytes=5), event(ALLOCATION, address=2, size_bytes=4))
    assert device.peak.allocated_bytes == 9


def test_a_mark_says_whether_it_is_one_of_a_request_that_failed():
    marks = folds_of([
        event(EventKind.MARKER, name="validate", time_unix_ns=7, device=-1),
        event(EventKind.MARKER, name="oom", time_unix_ns=5),
        event(EventKind.MARKER, name="peak", time_unix_ns=5),
    ])[0].marks  # fmt: skip
    assert [(mark.name, mark.is_out_of_memory) for mark in marks] == [("oom", True), ("validate", False)]


def test_marks_beyond_the_first_few_hundred_are_counted():
    stream = [event(EventKind.MARKER, name="validate", time_unix_ns=n) for n in range(MAX_MARKS + 7)]
    timeline = folds_of(stream)[0]
    assert (len(timeline.marks), timeline.marks_left_out) == (MAX_MARKS, 7)


def test_a_mark_long_after_all_else_has_a_bin_too():
    """A program may sleep, and end its step then."""
    late = event(EventKind.MARKER, name="late", time_unix_ns=10**12, device=-1)
    timeline = folds_of([event(SAMPLE, allocated_bytes=7, time_unix_ns=5), late])[0]
    assert timeline.bins <= BINS
    assert timeline.marks[0].time_ns // timeline.bin_ns == timeline.bins - 1
    assert timeline.devices[0].samples["allocated_bytes"].tolist() == [7] * timeline.bins


def test_an_empty_recording_has_no_devices():
    timeline = folds_of([])[0]
    assert (timeline.bins, timeline.devices, timeline.events) == (0, (), 0)


def test_times_count_from_the_start_of_the_recording():
    info = RecordingInfo(devices=INFO.devices, start_time_unix_ns=1_000)
    stream = [event(SAMPLE, allocated_bytes=1, time_unix_ns=5_000, phase=Phase.FORWARD, step=3)]
    timeline = folds_of(stream, info=info)[0]
    assert timeline.first_ns == 4_000
    assert timeline.devices[0].peak.time_ns == 4_000
    assert (timeline.devices[0].peak.phase, timeline.devices[0].peak.step) == ("forward", 3)
