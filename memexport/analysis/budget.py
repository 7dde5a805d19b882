"""Where a device of a given size would run out of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.text import human_bytes
from memexport.model import COLUMNS, NULLS, Column, EventBatch, EventKind, Phase, Tables

OUT_OF_BUDGET: Final = "out of budget"
"""The MARKER that stands behind the first event for which a device has no room."""


@dataclass(frozen=True)
class Exceeded:
    """The first request that did not fit.

    Attributes:
        device: its index.
        bytes: what was asked for; None if an event without a size came to more than the budget.
        reserved: whether reserved bytes were compared; else allocated ones, for nothing reserves there.
        taken: reserved (or allocated) bytes with it.
        operator: who asked; None for what lived before the recording.
        module: None outside of any.
        phase: None where it is not known.
        step: None outside of any.
    """

    device: int
    bytes: int | None
    reserved: bool
    taken: int
    operator: str | None
    module: str | None
    phase: str | None
    step: int | None

    def describe(self, device: str, budget: int) -> str:
        """One sentence for people."""
        what = "what lived before the recording" if self.operator is None else self.operator
        place = f" of {self.module}" if self.module else ""
        when = ", ".join(
            part
            for part in (self.phase, f"step {self.step}" if self.step is not None else None)
            if part is not None
        )
        size = "" if self.bytes is None else f" asked for {human_bytes(self.bytes)} and"
        counter = "reserved" if self.reserved else "allocated"
        return (
            f"{device} would run out of {human_bytes(budget)} in {what}{place}"
            f"{f' ({when})' if when else ''}: it{size} would bring {counter} to {human_bytes(self.taken)}"
        )


class BudgetCheck:
    """Finds the first event after which a device holds more than the budget, and puts a MARKER behind it.

    What counts is `reserved`; on a device that reserves nothing, `allocated`. A fold over the batches, in
    order; each device is judged by itself, and only until it exceeds.

    Args:
        budget: bytes.
        counts: whether the device with this index is judged.
        tables: the recording's.
    """

    def __init__(self, budget: int, counts: Callable[[int], bool], tables: Tables) -> None:
        self._budget = budget
        self._counts = counts
        self._strings = tables.strings
        self._marker = tables.strings.intern(OUT_OF_BUDGET)
        self._over: set[int] = set()
        self.exceeded: list[Exceeded] = []

    def apply(self, batch: EventBatch) -> EventBatch:
        """The batch, with a marker in it for each device that exceeds the budget there for the first time."""
        reserves = batch.reserved_bytes >= 0
        taken = np.where(reserves, batch.reserved_bytes, batch.allocated_bytes)
        beyond = np.flatnonzero((taken > self._budget) & (batch.kind != EventKind.MARKER))
        found = []
        for index in np.unique(batch.device[beyond]).tolist():
            if index < 0 or index in self._over or not self._counts(index):
                continue
            self._over.add(index)
            event = int(beyond[batch.device[beyond] == index][0])
            self.exceeded.append(self._describe(batch, event, bool(reserves[event]), int(taken[event])))
            found.append(event)
        return self._with_markers(batch, np.array(sorted(found))) if found else batch

    def _describe(self, batch: EventBatch, event: int, reserved: bool, taken: int) -> Exceeded:
        step, phase = int(batch.step[event]), Phase(int(batch.phase[event]))
        return Exceeded(
            device=int(batch.device[event]),
            bytes=_size(batch, event),
            reserved=reserved,
            taken=taken,
            operator=self._strings.get(int(batch.name[event])),
            module=self._strings.get(int(batch.module[event])),
            phase=None if phase is Phase.UNKNOWN else phase.name.lower(),
            step=None if step < 0 else step,
        )

    def _with_markers(self, batch: EventBatch, events: Column) -> EventBatch:
        """Each marker says of its event where it was, and how much it asked for."""
        ended = batch.time_unix_ns[events] + np.maximum(batch.duration_ns[events], 0)
        sizes = [_size(batch, event) for event in events.tolist()]
        size = [NULLS["size_bytes"] if value is None else value for value in sizes]
        changed = {
            "kind": EventKind.MARKER,
            "name": self._marker,
            "time_unix_ns": ended,
            "duration_ns": 0,
            "size_bytes": np.array(size, np.int64),
            "category": NULLS["category"],
            "address": 0,
            "inputs": 0,
        }
        columns = {}
        for name, column in batch.columns().items():
            value = np.asarray(changed.get(name, column[events])).astype(COLUMNS[name])
            columns[name] = np.insert(column, events + 1, value)
        return EventBatch(**columns)


def _size(batch: EventBatch, event: int) -> int | None:
    """What the event asked for."""
    asks = batch.kind[event] == EventKind.ALLOCATION
    return int(batch.size_bytes[event]) if asks and batch.size_bytes[event] >= 0 else None
