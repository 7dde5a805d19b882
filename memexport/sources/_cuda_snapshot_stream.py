"""The traces of all devices as one stream of events, and what stands before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from memexport.analysis.ranges import Range
from memexport.analysis.stamps import Stamp
from memexport.model import (
    INDEX_CLOCK_NS,
    UNKNOWN_SIZE,
    Column,
    EventBatch,
    EventKind,
    Phase,
    StringTable,
    Tables,
)
from memexport.sources._cuda_snapshot_actions import KIND, MOVES, Action
from memexport.sources._cuda_snapshot_annotations import Span
from memexport.sources._cuda_snapshot_device import COUNTERS, DeviceTrace
from memexport.sources._snapshot import TRACE_COLUMNS, Columns

MAX_TIME_US: Final = (2**63 - 1) // 1_000

_KEPT: Final = ("action", "address", "size", "stream", "time_us", "stack", "user_metadata")
_SMALL_STREAM: Final = 2**16
"""Streams below are numbers, those above are pointers."""


def with_device_free(trace: Columns) -> Columns:
    """The trace with an entry before each OOM for what it says of the free memory of the device."""
    says = np.flatnonzero((trace["action"] == Action.OOM) & (trace["device_free"] >= 0))
    if not len(says):
        return trace
    longer = {name: np.insert(column, says, column[says]) for name, column in trace.items()}
    added = says + np.arange(len(says))
    longer["action"][added] = Action.DEVICE_FREE
    longer["size"][added] = trace["device_free"][says]
    longer["stack"][added] = 0
    return longer


def in_order(times_us: Column) -> tuple[Column, int]:
    """The times of one device, never falling, and how many were raised for that.

    Entries are listed in the order in which the allocator's lock was taken, so the order is right and the
    clock that went back is not.
    """
    clipped = np.clip(times_us, 0, MAX_TIME_US)
    highest: Column = np.maximum.accumulate(clipped)
    return highest, int(np.count_nonzero(highest != clipped))


class Merged:
    """The entries of all devices by time; those of one device stay in order.

    Without times, one device's come after another's.
    """

    def __init__(self, traces: Sequence[Columns], followed: Sequence[DeviceTrace]) -> None:
        """The columns are taken out of `traces` and `followed`, so that they are not in memory twice."""
        lengths = [len(trace["action"]) for trace in traces]
        order = None
        if len(traces) > 1:
            order = np.argsort(np.concatenate([trace["time_us"] for trace in traces]), kind="stable")
        self._columns = {
            name: _in_order([trace.pop(name) for trace in traces], dtype, order)
            for name, dtype in TRACE_COLUMNS.items()
            if name in _KEPT
        }
        for name in COUNTERS:
            after = [one.after.pop(name) for one in followed]
            self._columns[name] = _in_order(after, np.dtype(np.int64), order)
        devices = np.repeat(np.arange(len(traces), dtype=np.int32), lengths)
        self._columns["device"] = _in_order([devices], devices.dtype, order)

    def __len__(self) -> int:
        return len(self._columns["action"])

    @property
    def times_us(self) -> Column:
        """Ascending, where the snapshot has times."""
        return self._columns["time_us"]

    def rows(self, begin: int, stop: int) -> Columns:
        """Some of the entries: the columns of the traces, the counters after each, and `device`."""
        return {name: column[begin:stop] for name, column in self._columns.items()}


class Vocabulary:
    """What entries are called as events."""

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._threads: dict[int, int] = {}
        self._stamps: dict[int, tuple[int, int, int]] = {}
        self._names = np.array(
            [0 if action == Action.ALLOC else strings.intern(action.label) for action in Action], np.uint32
        )

    def names(self, action: Column, user_metadata: Column) -> Column:
        """String ids: the action, but what the user said of an allocation or of a moment."""
        said = ((action == Action.ALLOC) | (action == Action.USER_DEFINED)) & (user_metadata != 0)
        return np.where(said, user_metadata, self._names[action])

    def stamped(self, action: Column, user_metadata: Column) -> Columns:
        """`name`, `module` and `phase`: as above, but where a tracker said it, what it said (`Stamp`)."""
        if not user_metadata.any():
            return {"name": self.names(action, user_metadata)}
        texts, index = np.unique(user_metadata, return_inverse=True)
        operator, module, phase = np.array([self._stamp(text) for text in texts.tolist()], np.uint32).T
        said = (phase[index] != Phase.UNKNOWN) & np.isin(action, MOVES)
        name = self.names(action, user_metadata)
        return {
            "name": np.where(said & (action == Action.ALLOC), operator[index], name),
            "module": np.where(said, module[index], 0),
            "phase": np.where(said, phase[index], Phase.UNKNOWN),
        }

    def threads(self, streams: Column) -> Column:
        """String ids for stream numbers."""
        distinct, index = np.unique(streams, return_inverse=True)
        return np.array([self._thread(stream) for stream in distinct.tolist()], np.uint32)[index]

    def action(self, action: Action) -> int:
        """The string id of an action's name."""
        return int(self._names[action])

    def _stamp(self, text: int) -> tuple[int, int, int]:
        """The ids of the operator and module, and the phase; UNKNOWN if the text says something else."""
        if text not in self._stamps:
            stamp, intern = Stamp.parse(self._strings.get(text) or ""), self._strings.intern
            if stamp is None:
                return 0, 0, Phase.UNKNOWN
            module = 0 if stamp.module is None else intern(stamp.module)
            self._stamps[text] = intern(stamp.operator), module, stamp.phase
        return self._stamps[text]

    def _thread(self, stream: int) -> int:
        known = self._threads.get(stream)
        if known is None:
            text = f"stream {stream}" if stream < _SMALL_STREAM else f"stream {stream:#x}"
            known = self._threads[stream] = self._strings.intern(text)
        return known


def entry_events(rows: Columns, vocabulary: Vocabulary) -> EventBatch:
    """An event for each entry."""
    size = rows["size"]
    return EventBatch(
        kind=KIND[rows["action"]],
        time_unix_ns=rows["time_us"] * 1_000,
        **vocabulary.stamped(rows["action"], rows["user_metadata"]),
        thread=vocabulary.threads(rows["stream"]),
        stack=rows["stack"],
        device=rows["device"],
        size_bytes=np.where(size < 0, UNKNOWN_SIZE, size),
        address=rows["address"],
        **{f"{name}_bytes": rows[name] for name in COUNTERS},
    )


def events_before(device: int, trace: DeviceTrace, vocabulary: Vocabulary) -> Iterator[EventBatch]:
    """What was there when the trace began: segments, allocations, and then the counters."""
    segments = trace.segments_before()
    if segments:
        yield _segment_events(device, segments, vocabulary)
    before = trace.before
    if len(before["address"]):
        yield EventBatch(
            kind=np.full(len(before["address"]), EventKind.ALLOCATION, np.uint8),
            thread=vocabulary.threads(before["stream"]),
            stack=before["stack"],
            device=device,
            size_bytes=before["size"],
            address=before["address"],
        )
    counters: Mapping[str, int] = {f"{name}_bytes": value for name, value in trace.start.items()}
    yield EventBatch(kind=[EventKind.SAMPLE], device=device, **counters)


def _segment_events(device: int, segments: list[Range], vocabulary: Vocabulary) -> EventBatch:
    return EventBatch(
        kind=np.full(len(segments), EventKind.SAMPLE, np.uint8),
        name=vocabulary.action(Action.SEGMENT_ALLOC),
        thread=vocabulary.threads(np.array([segment.stream for segment in segments], np.uint64)),
        stack=[segment.stack for segment in segments],
        device=device,
        size_bytes=[segment.size_bytes for segment in segments],
        address=np.array([segment.address for segment in segments], np.uint64),
    )


def span_events(spans: Sequence[Span], devices: Mapping[int, int], tables: Tables) -> EventBatch:
    """The annotations; `devices` gives the place in `RecordingInfo.devices` of torch's device index."""
    begin_us = np.clip(np.array([span.begin_us for span in spans], np.int64), 0, MAX_TIME_US)
    end_us = np.clip(np.array([span.end_us for span in spans], np.int64), 0, MAX_TIME_US)
    return EventBatch(
        kind=np.full(len(spans), EventKind.SPAN, np.uint8),
        time_unix_ns=begin_us * 1_000,
        duration_ns=(end_us - begin_us) * 1_000,
        name=np.array([tables.strings.intern(span.name) for span in spans], np.uint32),
        device=np.array([devices.get(span.device, -1) for span in spans], np.int32),
    )


def woven(events: EventBatch, spans: EventBatch, before: Column) -> EventBatch:
    """The events, with each span before the event at its place in `before`, which is ascending."""
    if not len(spans):
        return events
    places = np.concatenate((np.arange(len(events)) * 2 + 1, before * 2))
    return EventBatch.concat([events, spans]).select(np.argsort(places, kind="stable"))


def at_time(events: EventBatch, time_unix_ns: Column) -> EventBatch:
    """The events at other times."""
    return EventBatch(**{**events.columns(), "time_unix_ns": time_unix_ns})


def counted(events: EventBatch, first: int) -> EventBatch:
    """The events on a clock that counts them, from this number on."""
    return at_time(events, np.arange(first, first + len(events), dtype=np.int64) * INDEX_CLOCK_NS)


def _in_order(columns: Sequence[Column], dtype: np.dtype[Any], order: Column | None) -> Column:
    """The columns as one, in this order; a single one is not copied."""
    if not columns:
        return np.empty(0, dtype)
    joined: Column = np.concatenate(columns) if len(columns) > 1 else columns[0]
    return joined if order is None else joined[order]
