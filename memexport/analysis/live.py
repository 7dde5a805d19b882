"""Which allocations are live, at any event of a recording.

An ALLOCATION lives from its event on until the RELEASE at its address, on its device and rank. One whose
release was not seen ends when its address is allocated anew. The RELEASE of what was never seen changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.model import COLUMNS, Column, EventBatch, EventKind

REMEMBERED: Final = ("size_bytes", "category", "module", "name", "stack")
"""The columns of an ALLOCATION that are kept while it lives, unless the caller names others."""

NEVER: Final = np.iinfo(np.int64).max
"""The end of what is still live when a batch is over."""


@dataclass(frozen=True)
class Allocations:
    """Allocations as rows, by ascending address: one array for the addresses, one per remembered column."""

    address: Column
    columns: Mapping[str, Column]

    @staticmethod
    def none(remember: Sequence[str] = REMEMBERED) -> Allocations:
        """No rows."""
        empty = {name: np.empty(0, COLUMNS[name]) for name in remember}
        return Allocations(np.empty(0, COLUMNS["address"]), empty)

    def __len__(self) -> int:
        return len(self.address)

    def take(self, where: Column) -> Allocations:
        """The rows that an index or a mask picks, in order."""
        return Allocations(self.address[where], {name: c[where] for name, c in self.columns.items()})

    def merge(self, other: Allocations) -> Allocations:
        """The rows of both; they must have no address in common."""
        if not len(other):
            return self
        if not len(self):
            return other
        positions = np.searchsorted(self.address, other.address) + np.arange(len(other))
        rest = np.ones(len(self) + len(other), bool)
        rest[positions] = False
        return Allocations(
            _interleave(self.address, other.address, positions, rest),
            {name: _interleave(c, other.columns[name], positions, rest) for name, c in self.columns.items()},
        )


@dataclass(frozen=True)
class Lifetimes:
    """What lived at one place during one batch.

    Attributes:
        carried: what was live before the batch.
        carried_end: the position in the batch of the event that ended it; `NEVER` if it outlived the batch.
        born: what the batch allocated, in no particular order where an address occurs twice.
        born_start: the position of its ALLOCATION.
        born_end: like `carried_end`.
    """

    carried: Allocations
    carried_end: Column
    born: Allocations
    born_start: Column
    born_end: Column

    def live_at(self, position: int) -> Allocations:
        """What was live right after the event at this position; −1: before the first."""
        old = self.carried.take(self.carried_end > position)
        return old.merge(self.born.take((self.born_start <= position) & (self.born_end > position)))

    def survivors(self) -> Allocations:
        """What was live after the batch."""
        ended = self.carried_end != NEVER
        old = self.carried.take(~ended) if ended.any() else self.carried
        return old.merge(self.born.take(self.born_end == NEVER))


class LiveSet:
    """Follows the allocations of one place (a device of a rank) through a recording, a batch at a time.

    Memory grows with what is live at once, not with the length of the recording. Arrays handed out are never
    changed later, so a caller may keep them.

    Args:
        remember: the columns of an ALLOCATION to keep while it lives.
    """

    def __init__(self, remember: Sequence[str] = REMEMBERED) -> None:
        self._remember = tuple(remember)
        self._live = Allocations.none(self._remember)

    def live(self) -> Allocations:
        """What is live now."""
        return self._live

    def add(self, batch: EventBatch, positions: Column) -> Lifetimes:
        """Take the events at these ascending positions, all of one place (see `split_by_place`).

        An event without an address cannot be paired and is left out.
        """
        kind = batch.kind[positions]
        # One comparison for both kinds: below ALLOCATION, unsigned subtraction wraps to a large number.
        moves = kind - np.uint8(EventKind.ALLOCATION) <= 1
        positions = positions[moves]
        address = batch.address[positions]
        if len(address) and not address.all():
            positions = positions[address != 0]
            address = batch.address[positions]
        lifetimes = self._pair(batch, positions, address)
        self._live = lifetimes.survivors()
        return lifetimes

    def _pair(self, batch: EventBatch, positions: Column, address: Column) -> Lifetimes:
        """Sorted by address, then by time, whatever ends an allocation is its neighbour."""
        order = np.argsort(address, kind="stable")
        address, positions = address[order], positions[order]
        repeats = address[1:] == address[:-1]
        end = np.full(len(address), NEVER)
        end[:-1][repeats] = positions[1:][repeats]
        first = np.concatenate(([True], ~repeats))[: len(address)]
        born = np.flatnonzero(batch.kind[positions] == EventKind.ALLOCATION)
        columns = {name: getattr(batch, name)[positions[born]] for name in self._remember}
        return Lifetimes(
            self._live,
            _ends(self._live.address, address[first], positions[first]),
            Allocations(address[born], columns),
            positions[born],
            end[born],
        )


def _ends(carried: Column, address: Column, position: Column) -> Column:
    """Where each carried allocation ends, given the first event at each address."""
    ends = np.full(len(carried), NEVER)
    if len(carried) and len(address):
        index = np.minimum(np.searchsorted(carried, address), len(carried) - 1)
        hit = carried[index] == address
        ends[index[hit]] = position[hit]
    return ends


def _interleave(ours: Column, theirs: Column, positions: Column, rest: Column) -> Column:
    merged = np.empty(len(rest), ours.dtype)
    merged[positions] = theirs
    merged[rest] = ours
    return merged
