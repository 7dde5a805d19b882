"""What lives in the memory of each device, batch by batch, for all that a trace draws of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memexport.analysis.live import REMEMBERED, Lifetimes, LiveSet
from memexport.analysis.places import Place, split_by_place
from memexport.model import Column, EventBatch, EventKind, StringTable

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Residence:
    """One place during one batch.

    Attributes:
        positions: its events in the batch, ascending; those of markers are left out.
        allocated_bytes: the counter after each of these events; −1 where it is not known.
        step: the step of each of these events; −1 outside of any.
        end_ns: when each event of the *batch* ended, on the trace's time axis.
        lifetimes: what lived there.
        start: the position from which on the recording is of what happened; allocations before it only
            register what lived already.
    """

    place: Place
    positions: Column
    allocated_bytes: Column
    step: Column
    end_ns: Ints
    lifetimes: Lifetimes
    start: int


class Residences:
    """Follows the live storages of every place. Memory grows with what is live at once.

    Args:
        strings: the recording's.
        remember: the columns of an ALLOCATION to keep while it lives.
    """

    def __init__(self, strings: StringTable, remember: Sequence[str] = REMEMBERED) -> None:
        self._strings = strings
        self._remember = tuple(remember)
        self._live: dict[Place, LiveSet] = {}
        self._started: set[int] = set()

    def add(self, batch: EventBatch, end_ns: Ints) -> Iterator[Residence]:
        """Take the next batch; every place that it speaks of."""
        starts = self._starts(batch)
        for place, positions in split_by_place(batch):
            kinds = batch.kind[positions]
            if kinds.max() == EventKind.MARKER:
                positions = positions[kinds != EventKind.MARKER]
            live = self._live.setdefault(place, LiveSet(self._remember))
            lifetimes = live.add(batch, positions)
            start = 0 if place.rank in self._started else starts.get(place.rank, len(batch))
            yield Residence(
                place,
                positions,
                batch.allocated_bytes[positions],
                batch.step[positions],
                end_ns,
                lifetimes,
                start,
            )
        self._started |= starts.keys()

    def _starts(self, batch: EventBatch) -> dict[int, int]:
        """The position of the first MARKER "start" of each rank that the batch has one of."""
        name = self._strings.find("start")
        if name is None or batch.kind.max(initial=0) < EventKind.MARKER:
            return {}
        rows = np.flatnonzero((batch.kind == EventKind.MARKER) & (batch.name == name))
        return dict(zip(batch.rank[rows[::-1]].tolist(), rows[::-1].tolist(), strict=True))
