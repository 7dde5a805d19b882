"""What `MemoryTracker` shows of a recording: each operator's name and its device's counters after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from memexport.model import Column, EventBatch, EventKind, Phase, RecordingEnd, RecordingInfo, Tables

BYTES_PER_MIB: Final = 1024 * 1024
Trace = dict[int, tuple[str, float]]
"""By the operator's index, its name and a counter in MiB."""

_FORWARD_START: Final = "fw_start"
_BOUNDARY: Final = "fw_bw_boundary"
_COUNTERS: Final = ("allocated_bytes", "active_bytes", "reserved_bytes")
_PASS_NAMES: Final = {Phase.FORWARD: "forward", Phase.RECOMPUTE: "forward", Phase.BACKWARD: "backward"}
# It moves no memory, and autograd calls it everywhere.
_LEFT_OUT: Final = "aten.detach.default"


@dataclass(frozen=True)
class OperatorStats:
    """What `MemoryTracker` knows.

    Attributes:
        allocated: with `active` and `reserved`, the device's counters after each operator. What a device
            does not say (the CPU reserves nothing) is as much as is allocated.
        markers: by name, the index of the operator that comes next.
        alloc_retries: how often an allocator had to free its cache and try again.
    """

    allocated: Trace = field(default_factory=dict)
    active: Trace = field(default_factory=dict)
    reserved: Trace = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)
    alloc_retries: int = 0


class OperatorTable:
    """An exporter that keeps what `MemoryTracker` shows: operators, samples and module calls.

    Args:
        root: the path of the root module, whose forward the markers are about; None for that of the first
            outermost call.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = root
        self._batches: list[EventBatch] = []
        self._retries = 0

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Remember what ids stand for."""
        self._info, self._tables = info, tables

    def write(self, batch: EventBatch) -> None:
        """Keep what is shown of a batch."""
        kept = np.isin(batch.kind, (EventKind.OPERATOR, EventKind.SAMPLE, EventKind.SPAN))
        self._batches.append(batch.select(kept))

    def end(self, end: RecordingEnd) -> None:
        """Take the totals."""
        self._retries = end.alloc_retries or 0

    def abort(self) -> None:
        """Keep what there is."""

    def stats(self) -> OperatorStats:
        """What has been written until now."""
        if not self._batches:
            return OperatorStats()
        events = EventBatch.concat(self._batches)
        spans = np.flatnonzero((events.kind == EventKind.SPAN) & (events.module != 0))
        root = self._root if self._root is not None else self._first_outermost(events, spans)
        left_out = self._tables.strings.find(_LEFT_OUT)
        shown = np.flatnonzero((events.kind == EventKind.OPERATOR) & (events.name != (left_out or 0)))
        names = list(self._names(events.select(shown), root))
        allocated, active, reserved = (
            dict(enumerate(zip(names, (counter[shown] / BYTES_PER_MIB).tolist(), strict=True)))
            for counter in self._counters(events)
        )
        markers = self._markers(events, spans, shown, root)
        return OperatorStats(allocated, active, reserved, markers, self._retries)

    def _names(self, operators: EventBatch, root: str | None) -> Iterator[str]:
        """Like "layer.forward.addmm.default_3": the fourth addmm of the recording."""
        counts: Counter[str] = Counter()
        strings = self._tables.strings
        rows = zip(operators.name.tolist(), operators.module.tolist(), operators.phase.tolist(), strict=True)
        for name, module, phase in rows:
            full_name = strings.get(name) or ""
            operator = full_name.partition(".")[2] or full_name
            yield f"{self._place(strings.get(module), phase, root)}.{operator}_{counts[operator]}"
            counts[operator] += 1

    def _place(self, module: str | None, phase: int, root: str | None) -> str:
        pass_name = _PASS_NAMES.get(Phase(phase))
        if module is None or pass_name is None:
            return ""
        return f"{'' if module == root else module}.{pass_name}"

    def _counters(self, events: EventBatch) -> list[Column]:
        """The counters after each event of the device that is shown, an accelerator if there is one."""
        shown = int(events.device.max(initial=0))
        allocated, active, reserved = (
            _last_known(getattr(events, name), events.device == shown) for name in _COUNTERS
        )
        return [
            np.maximum(allocated, 0),
            np.where(active < 0, np.maximum(allocated, 0), active),
            np.where(reserved < 0, np.maximum(allocated, 0), reserved),
        ]

    def _first_outermost(self, events: EventBatch, spans: Column) -> str | None:
        """The module of the first call in forward that no other call contains."""
        begins = events.time_unix_ns[spans]
        later = np.minimum.accumulate(begins[::-1])[::-1]
        outermost = np.append(begins[:-1] < later[1:], True)[: len(begins)]
        roots = spans[outermost & (events.phase[spans] == Phase.FORWARD)]
        return self._tables.strings.get(int(events.module[roots[0]])) if len(roots) else None

    def _markers(self, events: EventBatch, spans: Column, shown: Column, root: str | None) -> dict[str, int]:
        """Where each forward of the root began and ended; the last ones have the plain names."""
        module = self._tables.strings.find(root) if root is not None else None
        calls = spans[(events.module[spans] == (module or 0)) & (events.phase[spans] == Phase.FORWARD)]
        ended = events.time_unix_ns[shown] + events.duration_ns[shown]
        starts = np.searchsorted(ended, events.time_unix_ns[calls], "right").tolist()
        ends = np.searchsorted(shown, calls).tolist()
        markers: dict[str, int] = {}
        for number, (start, end) in enumerate(zip(starts, ends, strict=True), 1):
            suffix = f" (iteration {number})" if number < len(starts) else ""
            markers[_FORWARD_START + suffix] = start
            markers[_BOUNDARY + suffix] = end
        return markers


def _last_known(counter: Column, where: Column) -> Column:
    """At each event the last value that is known of the events `where`; −1 before the first."""
    known = where & (counter >= 0)
    latest = np.maximum.accumulate(np.where(known, np.arange(len(counter)), -1))
    return np.where(latest >= 0, counter[latest], -1)
