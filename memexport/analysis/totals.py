"""What a summary counts over all places: events, time, steps, markers, and the operators' bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.place_fold import phase_name
from memexport.model import UNKNOWN_SIZE, Column, EventBatch, EventKind, StringTable, Tables

MAX_MARKERS: Final = 1_000
"""How many markers a summary lists; a loop that marks every batch must not fill the memory."""

_ID_BITS: Final = 28
_PHASE_BITS: Final = 8


@dataclass(frozen=True)
class OperatorTotal:
    """All calls of one operator from one module in one phase.

    Attributes:
        bytes: the sum of their known net changes.
        count: how many there were, those of unknown change too.
    """

    operator: str | None
    module: str | None
    phase: str | None
    bytes: int
    count: int


@dataclass(frozen=True)
class Marker:
    """A moment with a name; `event_index` counts all events of the recording from 0."""

    name: str | None
    time_unix_ns: int
    event_index: int


class OperatorTotals:
    """Sums per (operator, module, phase), as sorted arrays: a batch costs no Python object."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.uint64)
        self._bytes = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def add(self, batch: EventBatch, operators: Column) -> None:
        """Take the OPERATOR events at these positions."""
        keys = _packed(batch.name[operators], batch.module[operators], batch.phase[operators])
        sizes = batch.size_bytes[operators]
        index = self._find(keys)
        np.add.at(self._bytes, index, np.where(sizes == UNKNOWN_SIZE, 0, sizes))
        self._counts += np.bincount(index, minlength=len(self._keys))

    def top(self, count: int, strings: StringTable) -> tuple[OperatorTotal, ...]:
        """The `count` largest by bytes, ties by count and then in a fixed order."""
        order = np.lexsort((self._keys, -self._counts, -self._bytes))[:count]
        return tuple(self._total(int(row), strings) for row in order)

    def _find(self, keys: Column) -> Column:
        """The row of each key; those that are new get one."""
        index = np.searchsorted(self._keys, keys)
        if len(self._keys):
            found = self._keys[np.minimum(index, len(self._keys) - 1)] == keys
            if found.all():
                return index
            self._insert(np.unique(keys[~found]))
        else:
            self._insert(np.unique(keys))
        return np.searchsorted(self._keys, keys)

    def _insert(self, keys: Column) -> None:
        rows = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, rows, keys)
        self._bytes = np.insert(self._bytes, rows, 0)
        self._counts = np.insert(self._counts, rows, 0)

    def _total(self, row: int, strings: StringTable) -> OperatorTotal:
        key = int(self._keys[row])
        mask = (1 << _ID_BITS) - 1
        return OperatorTotal(
            operator=strings.get(key >> (_ID_BITS + _PHASE_BITS)),
            module=strings.get((key >> _PHASE_BITS) & mask),
            phase=phase_name(key & ((1 << _PHASE_BITS) - 1)),
            bytes=int(self._bytes[row]),
            count=int(self._counts[row]),
        )


class StepNumbers:
    """Different step numbers; `len` says how many. A million one after another take some two megabytes."""

    _BITS: Final = 64

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def add(self, steps: Column) -> None:
        """Take numbers from 0."""
        for step in steps.tolist():
            block, bit = divmod(step, self._BITS)
            self._seen[block] = self._seen.get(block, 0) | 1 << bit

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._seen.values())


class Totals:
    """Everything that is counted event by event, whatever the place.

    Attributes:
        events: how many there were.
        markers: the first `MAX_MARKERS`.
        markers_left_out: how many there were beyond them.
        steps: the step numbers of the spans named "step".
    """

    def __init__(self, tables: Tables) -> None:
        self.events = 0
        self.markers: list[Marker] = []
        self.markers_left_out = 0
        self.steps = StepNumbers()
        self.operators = OperatorTotals()
        self._tables = tables
        self._by_kind = np.zeros(256, np.int64)
        self._first_ns: int | None = None
        self._last_ns = 0

    def count(self, kind: EventKind) -> int:
        """How many events of this kind there were."""
        return int(self._by_kind[kind])

    @property
    def duration_ns(self) -> int:
        """From the first event's start to the last one's end; 0 without events."""
        return 0 if self._first_ns is None else self._last_ns - self._first_ns

    def add(self, batch: EventBatch) -> None:
        """Take a batch of at least one event."""
        by_kind = np.bincount(batch.kind, minlength=256)
        self._by_kind += by_kind
        self._add_times(batch)
        if by_kind[EventKind.OPERATOR]:
            self.operators.add(batch, np.flatnonzero(batch.kind == EventKind.OPERATOR))
        if by_kind[EventKind.SPAN]:
            self._add_steps(batch, np.flatnonzero(batch.kind == EventKind.SPAN))
        if by_kind[EventKind.MARKER]:
            self._add_markers(batch, np.flatnonzero(batch.kind == EventKind.MARKER))
        self.events += len(batch)

    def _add_times(self, batch: EventBatch) -> None:
        first = int(batch.time_unix_ns.min())
        self._first_ns = first if self._first_ns is None else min(self._first_ns, first)
        last = int((batch.time_unix_ns + np.maximum(batch.duration_ns, 0)).max())
        self._last_ns = last if self.events == 0 else max(self._last_ns, last)

    def _add_steps(self, batch: EventBatch, spans: Column) -> None:
        step_id = self._tables.strings.find("step")
        if step_id is not None:
            steps = batch.step[spans][batch.name[spans] == step_id]
            self.steps.add(steps[steps >= 0])

    def _add_markers(self, batch: EventBatch, markers: Column) -> None:
        listed = markers[: MAX_MARKERS - len(self.markers)]
        self.markers_left_out += len(markers) - len(listed)
        for position in listed.tolist():
            name = self._tables.strings.get(int(batch.name[position]))
            time_unix_ns = int(batch.time_unix_ns[position])
            self.markers.append(Marker(name, time_unix_ns, self.events + position))


def _packed(name: Column, module: Column, phase: Column) -> Column:
    """One number for the three: a table of 2**28 strings would not fit in memory, so no id is cut."""
    key = (name.astype(np.uint64) << np.uint64(_ID_BITS)) | module
    return (key << np.uint64(_PHASE_BITS)) | phase
