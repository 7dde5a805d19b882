"""What lives in the memory of each device, batch by batch, for all that a trace draws of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.live import Allocations, Lifetimes, LiveSet
from memexport.analysis.places import Place, split_by_place
from memexport.model import Column, EventBatch, EventKind

_REMEMBERED: Final = ("size_bytes", "category", "module", "name")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Residence:
    """One place during one batch.

    Attributes:
        positions: its events in the batch, ascending; those of markers are left out.
        allocated_bytes: the counter after each of these events; −1 where it is not known.
        end_ns: when each event of the *batch* ended, on the trace's time axis.
        lifetimes: what lived there.
    """

    place: Place
    positions: Column
    allocated_bytes: Column
    end_ns: Ints
    lifetimes: Lifetimes


class Residences:
    """Follows the live storages of every place. Memory grows with what is live at once."""

    def __init__(self) -> None:
        self._live: dict[Place, LiveSet] = {}

    def add(self, batch: EventBatch, end_ns: Ints) -> Iterator[Residence]:
        """Take the next batch; every place that it speaks of."""
        for place, positions in split_by_place(batch):
            kinds = batch.kind[positions]
            if kinds.max() == EventKind.MARKER:
                positions = positions[kinds != EventKind.MARKER]
            live = self._live.setdefault(place, LiveSet(_REMEMBERED))
            lifetimes = live.add(batch, positions)
            yield Residence(place, positions, batch.allocated_bytes[positions], end_ns, lifetimes)


class Peak:
    """The moment at which a place's `allocated` was first at its highest.

    Attributes:
        bytes: the counter; −1 while it is not known.
        time_ns: on the trace's time axis.
    """

    def __init__(self) -> None:
        self.bytes = -1
        self.time_ns = 0
        self._lifetimes: Lifetimes | None = None
        self._position = -1

    def add(self, residence: Residence) -> None:
        """Take what happened at the place in one more batch."""
        allocated = residence.allocated_bytes
        if int(allocated.max(initial=-1)) <= self.bytes:
            return
        highest = int(allocated.argmax())
        self.bytes, self._position = int(allocated[highest]), int(residence.positions[highest])
        self.time_ns = int(residence.end_ns[self._position])
        self._lifetimes = residence.lifetimes

    def live(self) -> Allocations:
        """What lived then. Worked out when asked for: most peaks are soon surpassed."""
        if self._lifetimes is None:
            return Allocations.none(_REMEMBERED)
        return self._lifetimes.live_at(self._position)
