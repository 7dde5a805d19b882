"""Reads the pickle that `torch.cuda.memory._dump_snapshot` writes, without executing anything in it.

It holds the segments and blocks of each device when it was taken and, if recording was on, a trace of what
the allocator did before. Layouts from torch 1.13 to 2.11, `torch/csrc/cuda/memory_snapshot.cpp`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from memexport.errors import InputError
from memexport.model import (
    Clock,
    Device,
    EventBatch,
    EventKind,
    RecordingEnd,
    RecordingInfo,
    StringTable,
    Tables,
)
from memexport.sources import _snapshot_pickle
from memexport.sources._cuda_snapshot_actions import MOVES, Action, codes
from memexport.sources._cuda_snapshot_annotations import Spans
from memexport.sources._cuda_snapshot_device import DeviceTrace, Known, known_of, size_warnings
from memexport.sources._cuda_snapshot_stream import (
    Merged,
    Vocabulary,
    at_time,
    counted,
    entry_events,
    events_before,
    in_order,
    span_events,
    with_device_free,
    woven,
)
from memexport.sources._snapshot import TRACE_COLUMNS, Columns, Snapshot

MAX_TOTAL_BYTES: Final = 2**62
"""What the sizes of one device may add up to; counters have to stay within 64 bits."""

_BATCH: Final = 16_384

_NO_CONTEXT: Final = "N/A"
"""The `compile_context` of what no torch.compile made."""


class CudaSnapshotSource:
    """A CUDA memory snapshot. The file is read, checked and closed when this is constructed.

    First come, for each device, its segments (SAMPLEs "segment_alloc"), the ALLOCATIONs that lived before the
    trace and a SAMPLE of the counters; then the MARKER "start" and the trace. A snapshot without a trace ends
    there.

    "alloc" is an ALLOCATION, "free_requested" (or "free") a RELEASE; "free_completed" and what happens to
    segments are SAMPLEs of these names, with address and size; "oom" is a MARKER with the size of the request
    that failed, after a SAMPLE "device_free" with the bytes that the device had left. "thread" is the stream.
    An ALLOCATION's name is what the user said of it (`user_metadata`); the operator is not known, unless a
    `Tracker(annotate_snapshots=True)` said it, and then the module and phase too. The user's annotations are
    SPANs.
    """

    info: RecordingInfo
    tables: Tables

    def __init__(self, path: str | os.PathLike[str], progress: Callable[[float], None] | None = None) -> None:
        self._path = Path(path)
        self.tables = Tables()
        self._done = 0
        snapshot = _snapshot_pickle.read_snapshot(self._path, self.tables, progress)
        clock = _clock(snapshot)
        present = _present(snapshot)
        self._warnings = list(_file_warnings(snapshot, clock, self.tables.strings))
        traces = [self._prepared(snapshot, index, clock) for index in present]
        known = [known_of(snapshot, index, self.tables.strings) for index in present]
        self._check_sizes(traces, known)
        devices = [Device("cuda", index) for index in present]
        followed = [DeviceTrace(*row) for row in zip(devices, traces, known, strict=True)]
        self._warnings += [warning for one in followed for warning in one.warnings]
        self._warnings += size_warnings(zip(devices, known, strict=True))
        self._vocabulary = Vocabulary(self.tables.strings)
        beginning = self._beginning(followed)
        self._ooms = sum(int(np.count_nonzero(trace["action"] == Action.OOM)) for trace in traces)
        self._merged = Merged(traces, followed)
        self._spans, self._places = self._annotations(snapshot, clock, present)
        start_ns = _start_ns(snapshot, self._merged) if clock == "unix" else None
        self.info = self._info(snapshot, clock, start_ns, devices)
        self._before = at_time(beginning, np.full(len(beginning), start_ns or 0))

    @staticmethod
    def sniff(head: bytes) -> bool:
        """Whether it is a pickle whose first strings are those of a snapshot."""
        return _snapshot_pickle.sniff(head)

    def batches(self) -> Iterator[EventBatch]:
        """Every event, in order."""
        self._done = 0
        index = self.info.clock == "index"
        first = 0
        for batch in self._all():
            yield counted(batch, first) if index else batch
            first += len(batch)

    def end(self) -> RecordingEnd:
        """Warnings, and how many requests failed if there is a trace."""
        return RecordingEnd(tuple(self._warnings), ooms=self._ooms if len(self._merged) else None)

    @property
    def fraction_read(self) -> float | None:
        """How many of the entries the running pass has handed out, 0 to 1."""
        return self._done / len(self._merged) if len(self._merged) else 1.0

    def close(self) -> None:
        """Do nothing: the file is closed already."""

    def _all(self) -> Iterator[EventBatch]:
        for begin in range(0, len(self._before), _BATCH):
            yield self._before.select(slice(begin, begin + _BATCH))
        for begin in range(0, len(self._merged), _BATCH):
            stop = self._done = min(begin + _BATCH, len(self._merged))
            events = entry_events(self._merged.rows(begin, stop), self._vocabulary)
            yield self._with_spans(events, begin, stop)
        rest = self._with_spans(EventBatch.concat([]), len(self._merged), len(self._merged) + 1)
        if len(rest):
            yield rest

    def _with_spans(self, events: EventBatch, begin: int, stop: int) -> EventBatch:
        """With the spans that end before the entries from `begin` up to `stop`."""
        first, last = np.searchsorted(self._places, (begin, stop)).tolist()
        return woven(events, self._spans.select(slice(first, last)), self._places[first:last] - begin)

    def _prepared(self, snapshot: Snapshot, index: int, clock: Clock) -> Columns:
        """The trace of a device as it is followed: known actions only, times that never fall.

        It is taken out of the snapshot, so that it is not in memory twice.
        """
        trace = _no_trace()
        if index < len(snapshot.traces):
            trace = dict(snapshot.traces[index])
            snapshot.traces[index].clear()
        trace["action"] = codes(snapshot.actions)[trace["action"]]
        known = trace["action"] != Action.UNKNOWN
        if not known.all():
            trace = {name: column[known] for name, column in trace.items()}
        if clock == "index":
            trace["time_us"] = np.zeros(len(trace["action"]), np.int64)
        trace["time_us"], raised = in_order(trace["time_us"])
        if raised:
            self._warnings.append(f"cuda:{index}: {raised} entries are earlier than the one before them; "
                                  "they are shown at the same time")  # fmt: skip
        return with_device_free(trace)

    def _check_sizes(self, traces: list[Columns], known: list[Known]) -> None:
        for trace, at_end in zip(traces, known, strict=True):
            for sizes in (trace["size"], at_end.allocated["size"], at_end.segments["total_size"]):
                if sizes.sum(dtype=np.float64) >= MAX_TOTAL_BYTES:
                    raise InputError(self._path, None, "its sizes add up to more than any device has")

    def _annotations(
        self, snapshot: Snapshot, clock: Clock, present: list[int]
    ) -> tuple[EventBatch, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """The spans, and before which entry of the trace each stands: the first one after its end."""
        times = self._merged.times_us
        timed = [annotation for annotation in snapshot.annotations if annotation.time_us >= 0]
        if clock == "index" or not timed:
            return EventBatch.concat([]), np.empty(0, np.int64)
        at_us = [annotation.time_us for annotation in timed]
        first_us, last_us = (int(times[0]), int(times[-1])) if len(times) else (min(at_us), max(at_us))
        spans = Spans(timed, first_us, last_us)
        self._warnings += spans.warnings()
        ends = np.array([span.end_us for span in spans.all], np.int64)
        devices = {index: place for place, index in enumerate(present)}
        return span_events(spans.all, devices, self.tables), np.searchsorted(times, ends, side="right")

    def _info(
        self, snapshot: Snapshot, clock: Clock, start_ns: int | None, devices: list[Device]
    ) -> RecordingInfo:
        options = {f"allocator_settings.{name}": value for name, value in snapshot.settings.items()}
        if len(self.tables.stacks) > 1:
            options["record_stacks"] = "true"
        return RecordingInfo(
            format="torch.cuda.snapshot",
            producer="torch",
            clock=clock,
            start_time_unix_ns=start_ns,
            devices=devices,
            options=options,
        )

    def _beginning(self, followed: list[DeviceTrace]) -> EventBatch:
        """What stands before the trace, and the MARKER that it begins with."""
        batches: list[EventBatch] = []
        for device, trace in enumerate(followed):
            batches += events_before(device, trace, self._vocabulary)
        batches.append(EventBatch(kind=[EventKind.MARKER], name=self.tables.strings.intern("start")))
        return EventBatch.concat(batches)


def _no_trace() -> Columns:
    return {name: np.empty(0, dtype) for name, dtype in TRACE_COLUMNS.items()}


def _present(snapshot: Snapshot) -> list[int]:
    """The indices of the devices that the snapshot says anything of."""
    traced = {index for index, trace in enumerate(snapshot.traces) if len(trace["action"])}
    return sorted(traced | set(np.unique(snapshot.segments["device"]).tolist()))


def _clock(snapshot: Snapshot) -> Clock:
    """Whether everything that happened has a time; annotations have one where entries do."""
    timed = [trace["time_us"] >= 0 for trace in snapshot.traces if len(trace["action"])]
    timed = timed or [np.array([annotation.time_us >= 0 for annotation in snapshot.annotations])]
    return "unix" if all(len(times) and times.all() for times in timed) else "index"


def _start_ns(snapshot: Snapshot, merged: Merged) -> int:
    """The time of the first entry or annotation."""
    times = [annotation.time_us for annotation in snapshot.annotations if annotation.time_us >= 0]
    if len(merged):
        times.append(int(merged.times_us[0]))
    return min(times, default=0) * 1_000


def _has_moves(snapshot: Snapshot) -> bool:
    """Whether there is a trace of allocations, not just the moment at which the snapshot was taken."""
    moves = np.isin(codes(snapshot.actions), MOVES)
    return any(moves[trace["action"]].any() for trace in snapshot.traces)


def _file_warnings(snapshot: Snapshot, clock: Clock, strings: StringTable) -> Iterator[str]:
    """What the file as a whole lacks, in order of weight."""
    if not _has_moves(snapshot):
        yield (
            "the snapshot has no trace, only what was allocated when it was taken: recording was not on "
            "(torch.cuda.memory._record_memory_history turns it on)"
        )
    elif clock == "index":
        yield "the trace has no times (torch 2.2 and later write them): events are counted instead"
    if snapshot.trace_overflowed:
        yield (
            "the trace overflowed and lost its oldest entries: a larger max_entries of "
            "torch.cuda.memory._record_memory_history keeps more"
        )
    if clock == "index" and snapshot.annotations:
        yield f"{len(snapshot.annotations)} annotations are left out: nothing else has a time"
    no_context = [0, strings.find(_NO_CONTEXT) or 0]
    compiled = sum(
        int(np.count_nonzero(~np.isin(trace["compile_context"], no_context))) for trace in snapshot.traces
    )
    if compiled:
        yield f"{compiled} entries name the torch.compile call that they come from; this is left out"
    unknown = codes(snapshot.actions) == Action.UNKNOWN
    for place in np.flatnonzero(unknown).tolist():
        count = sum(int(np.count_nonzero(trace["action"] == place)) for trace in snapshot.traces)
        yield f"{count} entries were left out: memexport does not know the action {snapshot.actions[place]!r}"
    if snapshot.ignored:
        parts = [f"{what} ({count} times)" for what, count in snapshot.ignored.most_common(10)]
        yield f"what memexport does not know was ignored: {', '.join(parts)}"
