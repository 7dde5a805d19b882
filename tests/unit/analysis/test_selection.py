"""A selection's sums, starts and peaks are those of a slow replay of the whole recording."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from event_streams import batch_of, event, one_place, streams
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_oracle import end_of, is_peak, range_of, replay, without_small

from memexport.analysis.places import Place, place_names
from memexport.analysis.selection import Selection
from memexport.analysis.summary import SummaryFold
from memexport.errors import UsageError
from memexport.model import (
    Category,
    Device,
    EventBatch,
    EventKind,
    RecordingEnd,
    RecordingInfo,
    Tables,
)
from memexport.sources.selected import SelectedSource

DEVICES = [Device("cuda", 0), Device("cuda", 1), Device("cpu")]
Event = dict[str, Any]


class Stream:
    """A source of these events, cut before those at `cuts`."""

    def __init__(self, stream: list[Event], cuts: list[int] = (), **info: Any) -> None:
        self.tables = Tables()
        self.info = RecordingInfo(devices=DEVICES, **{"start_time_unix_ns": 0, **info})
        bounds = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
        self._batches = [
            batch_of(stream[begin:stop], self.tables) for begin, stop in itertools.pairwise(bounds)
        ]
        self.read = 0
        self.closed = False
        self.fraction_read = 0.5

    def batches(self):
        """One after another, counting them."""
        self.read = 0
        for batch in self._batches:
            self.read += 1
            yield batch

    def end(self):
        """A warning and two totals."""
        return RecordingEnd(("careful",), alloc_retries=3)

    def close(self):
        """Remember it."""
        self.closed = True


def events_of(source: Any) -> list[Event]:
    """What a pass gives, as dicts; strings in place of ids."""
    batch, tables = EventBatch.concat(list(source.batches())), source.tables
    rows = [dict(zip(batch.columns(), row, strict=True)) for row in zip(*_lists(batch), strict=True)]
    for row in rows:
        row["name"], row["module"] = tables.strings.get(row["name"]), tables.strings.get(row["module"])
        row["stack"] = [tables.strings.get(frame) for frame in tables.stacks.frames(row["stack"])] or None
    return rows


def _lists(batch: EventBatch) -> list[list[int]]:
    return [column.tolist() for column in batch.columns().values()]


def selected(stream: list[Event], selection: Selection, cuts: list[int] = (), **info: Any) -> list[Event]:
    """What the selection has of the stream."""
    return events_of(SelectedSource(Stream(stream, cuts, **info), selection))


def devices_of(stream: list[Event]) -> dict[str, Any]:
    """The devices in the summary of these events: of each, what a range must get right."""
    tables = Tables()
    fold = SummaryFold(RecordingInfo(devices=DEVICES), tables)
    fold.add(batch_of(stream, tables))
    devices = fold.result(RecordingEnd()).to_dict()["devices"]
    for device in devices.values():
        device["modules_at_peak"] = {row["module"]: row["bytes"] for row in device["modules_at_peak"]}
    return {name: compared(device) for name, device in devices.items()}


def compared(device: dict[str, Any]) -> dict[str, Any]:
    """Without the peak's time, which depends on how an event that began before the range is cut."""
    names = ("operator", "module", "phase")
    return {
        **{name: device[name] for name in ("allocated", "active", "reserved")},
        **{f"peak_{name}": device[f"peak_{name}"] for name in names},
        "categories_at_peak": device["categories_at_peak"],
        "modules_at_peak": device["modules_at_peak"],
        "fragmentation_at_peak": device["fragmentation_at_peak"],
    }


def check_range(stream: list[Event], begin: int | None, until: int | None, by_time: bool, cuts: Any) -> None:
    """Compare the summary of a range with a replay."""
    if begin is not None and until is not None and until < begin:
        begin, until = until, begin

    def when(limit: int | None) -> Any:
        return f"{limit}ns" if by_time and limit is not None else limit

    part = selected(stream, Selection(when(begin), when(until)), cuts)
    first, stop = range_of(stream, begin, until, by_time)
    expected = replay(stream, first, stop)
    names = place_names([Place(*key) for key in expected], RecordingInfo(devices=DEVICES))
    assert devices_of(part) == {names[Place(*key)]: compared(place) for key, place in expected.items()}
    counted = [e for e in stream[first:stop] if e["kind"] == EventKind.OPERATOR]
    assert len([e for e in part if e["kind"] == EventKind.OPERATOR]) == len(counted)


limits = st.one_of(st.none(), st.integers(0, 60))
cuts_of = st.lists(st.integers(0, 80), max_size=4)


def ordered(stream: list[Event]) -> list[Event]:
    """The stream as a recorder writes it: by the time at which events end."""
    return sorted(stream, key=end_of)


@settings(max_examples=300)
@given(streams, limits, limits, cuts_of)
def test_a_range_between_two_events_sums_up_like_a_replay(stream, begin, until, cuts):
    check_range(stream, begin, until, False, cuts)


@settings(max_examples=300)
@given(streams.map(ordered), limits, limits, cuts_of)
def test_a_range_between_two_times_sums_up_like_a_replay(stream, begin, until, cuts):
    check_range(stream, begin, until, True, cuts)


@given(streams, limits, limits, cuts_of)
def test_times_out_of_order_change_nothing_in_that(stream, begin, until, cuts):
    check_range(stream, begin, until, True, cuts)


@given(one_place, st.integers(0, 60), cuts_of)
def test_nothing_in_a_range_lies_before_it(stream, begin, cuts):
    source = SelectedSource(Stream(stream, cuts), Selection(begin=begin))
    events = events_of(source)
    if 0 < begin <= len(stream) and events:
        start = max((end_of(e) for e in stream[:begin] if not is_peak(e)), default=0)
        assert min(e["time_unix_ns"] for e in events) >= start
        assert source.info.start_time_unix_ns == start


@given(streams, limits, limits, cuts_of)
def test_where_the_batches_are_cut_does_not_show(stream, begin, until, cuts):
    if None not in (begin, until) and until < begin:
        begin, until = until, begin
    selection = Selection(begin, until, ("cuda:0", "cpu"), 10)
    assert selected(stream, selection, cuts) == selected(stream, selection)


@given(streams, cuts_of)
def test_a_second_pass_gives_the_same(stream, cuts):
    source = SelectedSource(Stream(stream, cuts), Selection(begin=5, until=30, min_bytes=10))
    assert events_of(source) == events_of(source)


# ---- sizes and devices


@settings(max_examples=300)
@given(streams, st.sampled_from([1, 10, 11, 100, 5_000]), cuts_of)
def test_without_small_allocations_a_recording_sums_up_like_a_replay_without_them(stream, min_bytes, cuts):
    part = selected(stream, Selection(min_bytes=min_bytes), cuts)
    expected = without_small(stream, min_bytes)
    kinds = [(e["kind"], e["time_unix_ns"], e["address"], e["size_bytes"]) for e in expected]
    assert [(e["kind"], e["time_unix_ns"], e["address"], e["size_bytes"]) for e in part] == kinds
    assert devices_of(part) == devices_of(expected)


@settings(max_examples=300)
@given(one_place, cuts_of)
def test_counters_with_their_starts_and_peaks_stay_whatever_is_too_small(stream, cuts):
    stream = [one for one in stream if not is_peak(one)]
    part, whole = devices_of(selected(stream, Selection(min_bytes=10**9), cuts)), devices_of(stream)
    # Without any counter, nothing is left of a device.
    for name, counter in itertools.product(part, ("allocated", "active", "reserved")):
        assert part[name][counter] == whole[name][counter]


@given(streams, cuts_of)
def test_the_other_devices_are_left_out_and_what_has_none_is_kept(stream, cuts):
    part = selected(stream, Selection(devices=("cuda:1", "cpu")), cuts)
    assert part == events_of(Stream([e for e in stream if e["device"] != 0]))


# ---- what can be said in a sentence


def test_what_lived_before_comes_first_with_all_that_is_known_of_it():
    stream = [
        event(
            EventKind.ALLOCATION,
            address=7,
            size_bytes=100,
            allocated_bytes=100,
            name="aten.mm.default",
            module="layers.0",
            category=Category.PARAMETER,
            stack=["train.py:1:main"],
            step=2,
            time_unix_ns=10,
        ),
        event(EventKind.ALLOCATION, address=8, size_bytes=50, allocated_bytes=150, time_unix_ns=11),
        event(EventKind.RELEASE, address=8, size_bytes=50, allocated_bytes=100, time_unix_ns=12),
        event(EventKind.MARKER, name="start", device=-1, time_unix_ns=13),
        event(EventKind.OPERATOR, size_bytes=0, allocated_bytes=100, time_unix_ns=9, duration_ns=11),
    ]
    first, sample, start, operator = selected(stream, Selection(begin=4))
    kept = {name: first[name] for name in ("address", "size_bytes", "name", "module", "stack", "step")}
    assert kept == {name: stream[0][name] for name in kept}
    assert (first["kind"], first["time_unix_ns"], first["allocated_bytes"]) == (EventKind.ALLOCATION, 13, -1)
    assert (sample["kind"], sample["allocated_bytes"]) == (EventKind.SAMPLE, 100)
    assert (start["kind"], start["name"]) == (EventKind.MARKER, "start")
    assert (operator["time_unix_ns"], operator["duration_ns"]) == (13, 7)


def test_a_recording_that_begins_in_the_range_is_as_it_was():
    stream = [event(EventKind.SAMPLE, time_unix_ns=time, allocated_bytes=time) for time in (5, 6)]
    assert selected(stream, Selection(begin="1ns")) == events_of(Stream(stream))
    assert selected(stream, Selection(begin=0, until="1h")) == events_of(Stream(stream))


def test_what_comes_after_the_range_is_not_read():
    stream = [event(EventKind.SAMPLE, time_unix_ns=time) for time in range(100)]
    source = Stream(stream, cuts=list(range(10, 100, 10)))
    part = SelectedSource(source, Selection(until=25))
    assert len(events_of(part)) == 25
    assert source.read == 3
    assert "what comes after the selected range was not read" in part.end().warnings


def test_the_peak_of_the_whole_recording_is_not_one_of_a_range():
    stream = [
        event(EventKind.SAMPLE, time_unix_ns=1),
        event(EventKind.MARKER, name="peak", time_unix_ns=1, allocated_bytes=9),
    ]
    assert len(selected(stream, Selection(begin=0))) == 1
    assert len(selected(stream, Selection(until="1h"))) == 1
    assert len(selected(stream, Selection(devices=("cuda:0",), min_bytes=9))) == 2


def test_what_lived_in_an_empty_range_is_there():
    stream = [event(EventKind.ALLOCATION, address=1, size_bytes=5, allocated_bytes=5, time_unix_ns=1)]
    kinds = [e["kind"] for e in selected(stream, Selection(begin=10))]
    assert kinds == [EventKind.ALLOCATION, EventKind.SAMPLE]
    assert [e["kind"] for e in selected(stream * 2, Selection(begin=1, until=1))] == kinds


def test_times_are_after_the_recordings_start_and_without_one_after_its_first_event():
    stream = [event(EventKind.SAMPLE, time_unix_ns=time) for time in (50, 60, 70)]
    assert len(selected(stream, Selection(begin="25ns"), start_time_unix_ns=40)) == 1
    assert len(selected(stream, Selection(begin="20ns"), start_time_unix_ns=None)) == 1


def test_times_of_day_are_found():
    stream = [event(EventKind.SAMPLE, time_unix_ns=seconds * 10**9) for seconds in range(5)]
    assert len(selected(stream, Selection("1970-01-01T00:00:01Z", "@3"))) == 2


def test_a_recording_without_a_clock_has_no_times():
    for when in ("1s", "@5"):
        with pytest.raises(UsageError, match="no clock"):
            selected([], Selection(begin=when), clock="index")
    stream = [event(EventKind.SAMPLE, time_unix_ns=n * 1000, allocated_bytes=n) for n in range(4)]
    assert len(selected(stream, Selection(begin=2), clock="index", start_time_unix_ns=None)) == 3


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(UsageError, match="before it begins"):
        Selection(begin=2, until=1)
    with pytest.raises(UsageError, match="before it begins"):
        selected([event(EventKind.SAMPLE, time_unix_ns=n) for n in range(9)], Selection(5, "2ns"))


def test_a_device_that_the_recording_does_not_have_is_refused_with_those_that_it_has():
    with pytest.raises(UsageError, match="cuda:7") as raised:
        selected([], Selection(devices=("cuda:7",)))
    assert raised.value.hint == "devices: cuda:0, cuda:1, cpu"


def test_what_was_left_out_is_said():
    stream = [
        event(EventKind.ALLOCATION, address=1, size_bytes=5),
        event(EventKind.ALLOCATION, address=2, size_bytes=5, device=1),
        event(EventKind.RELEASE, address=1, size_bytes=5),
    ]
    part = SelectedSource(Stream(stream), Selection(1, devices=("cuda:0",), min_bytes=6))
    list(part.batches())
    assert part.end().warnings == (
        "careful",
        "1 event was left out before the selected range",
        "events of other devices were left out",
        "allocations of less than 6 bytes were left out; the counters still have them",
        "allocation retries, failed requests and dropped events are those of the whole recording",
    )
    assert part.end().alloc_retries == 3


def test_an_empty_selection_changes_nothing_and_says_nothing():
    stream = [event(EventKind.SAMPLE, time_unix_ns=1), event(EventKind.MARKER, name="peak")]
    source = Stream(stream)
    part = SelectedSource(source, Selection())
    assert events_of(part) == events_of(source)
    assert part.info == source.info
    assert part.end() == source.end()


def test_a_selected_source_reads_and_closes_as_its_source_does():
    source = Stream([])
    part = SelectedSource(source, Selection())
    assert part.fraction_read == 0.5
    part.close()
    assert source.closed


def test_devices_are_names_and_not_a_name():
    with pytest.raises(UsageError, match="a tuple of names"):
        Selection(devices="cuda:0")


def test_a_selection_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Selection().begin = 3
