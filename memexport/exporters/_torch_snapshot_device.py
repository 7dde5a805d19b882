"""What a torch snapshot has of one device, gathered event by event."""

from __future__ import annotations

from typing import Final

import numpy as np

from memexport.analysis.live import LiveSet
from memexport.analysis.ranges import Range, Ranges
from memexport.exporters._torch_snapshot_end import (
    ALLOCATED,
    PENDING,
    Block,
    Coverage,
    Segment,
    laid_out,
    with_rest,
)
from memexport.exporters._torch_snapshot_layout import Layout
from memexport.exporters._torch_snapshot_rows import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    GROWS,
    SHRINKS,
    Entries,
    Rows,
    Spool,
    Streams,
)
from memexport.model import Column, EventBatch, EventKind, Tables

_REMEMBERED: Final = ("size_bytes", "stack", "module", "name")
_COUNTERS: Final = ("allocated", "active", "reserved")


class DeviceState:
    """One device: its trace, what lives on it, its segments and counters.

    The trace lies in a temporary file; memory grows with what is live at once.

    Attributes:
        spool: the rows of the trace.
    """

    def __init__(self, tables: Tables, *, of_snapshot: bool, layout: Layout | None) -> None:
        """`layout` gives the addresses where the recording has none, but numbers; None where it has them."""
        self.spool = Spool()
        self._layout = layout
        self._entries = Entries(tables, Streams(tables), of_snapshot=of_snapshot)
        self._live = LiveSet(_REMEMBERED)
        self._pending = LiveSet(_REMEMBERED)
        self._mapped = Ranges()
        self._coverage: Coverage | None = Coverage()
        self._counters = dict.fromkeys(_COUNTERS, -1)

    def add(self, batch: EventBatch) -> None:
        """Take the next events, all of this device.

        Raises:
            OSError: the folder for temporary files is full.
        """
        if self._layout is not None:
            batch = EventBatch(**{**batch.columns(), "address": self._layout.addresses(batch)})
        action = self._entries.actions(batch)
        rows = self._entries.rows(batch, action)
        self._live.add(batch, np.arange(len(batch)))
        self._follow_pending(rows)
        self._follow_segments(rows)
        for name in _COUNTERS:
            values = getattr(batch, f"{name}_bytes")
            known = values[(values >= 0) & (batch.kind != EventKind.MARKER)]
            if len(known):
                self._counters[name] = int(known[-1])
        self.spool.append(rows)

    def segments(self) -> list[Segment]:
        """The segments and blocks at the end, and room for what only the counters know of."""
        live = _blocks(self._live, ALLOCATED)
        pending = _blocks(self._pending, PENDING)
        segments = laid_out(self._ranges(), [*live, *pending])
        allocated, active = self._counters["allocated"], self._counters["active"]
        unknown = max(0, allocated - sum(block.size for block in live))
        waiting = max(0, active - max(0, allocated) - sum(block.size for block in pending))
        return with_rest(segments, self._counters["reserved"], {ALLOCATED: unknown, PENDING: waiting})

    def _ranges(self) -> list[Range]:
        if self._layout is not None:
            laid_out_at = self._layout.range()
            return [laid_out_at] if laid_out_at.size_bytes else []
        return list(self._mapped if self._coverage is None else self._coverage.ranges())

    def _follow_pending(self, rows: Rows) -> None:
        """Follow the blocks that were freed and still wait: like allocations that a free begins."""
        kind = np.zeros(len(rows), np.uint8)
        kind[rows["action"] == FREE_REQUESTED] = EventKind.ALLOCATION
        kind[(rows["action"] == FREE_COMPLETED) | (rows["action"] == ALLOC)] = EventKind.RELEASE
        moves = rows[kind != 0]
        columns: dict[str, Column] = {name: moves[name] for name in ("address", "stack", "module")}
        events = EventBatch(kind=kind[kind != 0], size_bytes=moves["size"], **columns)
        self._pending.add(events, np.arange(len(events)))

    def _follow_segments(self, rows: Rows) -> None:
        changes = rows[np.isin(rows["action"], (*GROWS, *SHRINKS))]
        if len(changes):
            self._coverage = None
        for row in changes.tolist():
            action, address, size, stream, _, stack, *_ = row
            if action in GROWS:
                self._mapped.add(Range(address, size, stream, stack))
            else:
                self._mapped.cut(address, size)
        if self._coverage is not None:
            allocs = rows[rows["action"] == ALLOC]
            self._coverage.add(allocs["address"], allocs["size"])


def _blocks(live: LiveSet, state: str) -> list[Block]:
    allocations = live.live()
    columns = allocations.columns
    contexts = zip(*(columns[name].tolist() for name in ("stack", "module", "name")), strict=True)
    sizes = np.maximum(columns["size_bytes"], 0).tolist()
    rows = zip(allocations.address.tolist(), sizes, contexts, strict=True)
    return [Block(address, size, state, context) for address, size, context in rows]
