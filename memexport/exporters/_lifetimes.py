"""Which storages a trace draws as bars from allocation to release, and on which lane each lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.live import NEVER, Allocations
from memexport.exporters._lanes import LanePool
from memexport.exporters._residence import Residence
from memexport.model import UNKNOWN_SIZE, Column

_SHARE_OF_PEAK: Final = 2_000
_SLICES_UNTIL_DOUBLED: Final = 50_000

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class SizeFloor:
    """The least size that is drawn.

    Automatic (`fixed_bytes` None): a 2000th of the highest `allocated` seen so far, and twice that for every
    50 000 bars drawn. So no more than 2000 bars of the final floor can lie side by side, small ones make room
    as a recording grows, and nothing has to be known in advance: a stream needs only one pass.

    Attributes:
        drawn: how many storages were drawn, of `seen`.
        bytes: the floor as it is now.
    """

    def __init__(self, fixed_bytes: int | None) -> None:
        self._fixed_bytes = fixed_bytes
        self._highest = 0
        self.bytes = fixed_bytes or 0
        self.drawn = self.seen = 0

    def admit(self, size_bytes: Column, allocated_bytes: Column) -> Mask:
        """Which of the batch's allocations are drawn, given the counter after each event of the batch."""
        if self._fixed_bytes is None:
            self._highest = max(self._highest, int(allocated_bytes.max(initial=0)))
            self.bytes = (self._highest << self.drawn // _SLICES_UNTIL_DOUBLED) // _SHARE_OF_PEAK
        # What is of unknown size is drawn only where everything is.
        admitted: Mask = size_bytes >= (self.bytes or UNKNOWN_SIZE)
        self.seen += len(size_bytes)
        self.drawn += int(np.count_nonzero(admitted))
        return admitted


@dataclass(frozen=True)
class Edges:
    """Begins and ends of bars, in the order in which they happen; what names a bar is null at its end.

    Attributes:
        lane: of the chart, from 0.
        name, module, stack: ids; `category` as in the model.
    """

    time_ns: Ints
    begins: Mask
    lane: Ints
    size_bytes: Ints
    category: Ints
    module: Ints
    name: Ints
    stack: Ints

    def __len__(self) -> int:
        return len(self.time_ns)

    @staticmethod
    def concat(parts: Sequence[Edges]) -> Edges:
        """The edges of several charts, one chart after the other."""
        names = [column.name for column in fields(Edges)]
        return Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Chart:
    """The bars of one place; each begins when its storage is allocated and ends when it is released.

    Remembers what is drawn and still live, nothing else.
    """

    def __init__(self) -> None:
        self._lanes = LanePool()
        self._open = Allocations(np.empty(0, np.uint64), {"lane": np.empty(0, np.int64)})

    def add(self, residence: Residence, drawn: Mask) -> Edges | None:
        """The edges in one more batch; `drawn` says which of its allocations get a bar."""
        lifetimes, rows = residence.lifetimes, np.flatnonzero(drawn)
        if not len(self._open) and not len(rows):
            return None
        place = np.searchsorted(lifetimes.carried.address, self._open.address)
        open_end, born_end = lifetimes.carried_end[place], lifetimes.born_end[rows]
        closed, inner = np.flatnonzero(open_end != NEVER), np.flatnonzero(born_end != NEVER)
        # An allocation at an address whose release was not seen ends the bar before and begins one.
        born_start = lifetimes.born_start[rows]
        when = np.concatenate((2 * born_start + 1, 2 * open_end[closed], 2 * born_end[inner]))
        order = np.argsort(when)
        takes = order < len(rows)
        lane = self._assign(order, self._open.columns["lane"][closed], inner, len(rows))
        self._remember(open_end == NEVER, residence, rows, lane[np.argsort(order)][: len(rows)])
        columns = {name: _where(takes, c[rows], order) for name, c in lifetimes.born.columns.items()}
        return Edges(residence.end_ns[when[order] >> 1], takes, lane, **columns)

    def _assign(self, order: Ints, given_back: Ints, inner: Ints, born: int) -> Ints:
        """The lane of each edge. Unsorted they are begins, ends of earlier bars, ends of the `inner` ones."""
        sorted_place = np.empty(len(order), np.int64)
        sorted_place[order] = np.arange(len(order))
        nothing = np.full(born, -1)
        lane = np.concatenate((nothing, given_back, np.full(len(inner), -1)))
        taken_at = np.concatenate((nothing, np.full(len(given_back), -1), sorted_place[inner]))
        return self._lanes.assign(order < born, lane[order], taken_at[order])

    def _remember(self, still_open: Mask, residence: Residence, rows: Ints, lane: Ints) -> None:
        lifetimes = residence.lifetimes
        born = Allocations(lifetimes.born.address[rows], {"lane": lane})
        self._open = self._open.take(still_open).merge(born.take(lifetimes.born_end[rows] == NEVER))


def _where(begins: Mask, born: Column, order: Ints) -> Ints:
    """The column of the storages at the edges where they begin, 0 at the others."""
    values = np.zeros(len(order), np.int64)
    values[begins] = born[order[begins]]
    return values
