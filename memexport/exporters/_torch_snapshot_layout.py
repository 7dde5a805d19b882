"""Addresses for allocations that only have numbers: where an allocator might have put them."""

from __future__ import annotations

from typing import Final

import numpy as np

from memexport.analysis.ranges import Range
from memexport.model import Column, EventBatch, EventKind

_FIRST: Final = 1 << 40
_ROUNDED_TO: Final = 512


class Layout:
    """Lays allocations out one behind another; what is released is used again by the next of its size.

    The recorder numbers storages, it does not know where they are. A viewer of addresses needs some that
    do not overlap while both live.
    """

    def __init__(self) -> None:
        self._next = _FIRST
        self._places: dict[int, tuple[int, int]] = {}
        self._free: dict[int, list[int]] = {}

    def addresses(self, batch: EventBatch) -> Column:
        """An address for each ALLOCATION and RELEASE of the batch that has a number; 0 for the others."""
        addresses = np.zeros(len(batch), np.uint64)
        moves = (batch.kind == EventKind.ALLOCATION) | (batch.kind == EventKind.RELEASE)
        rows = np.flatnonzero(moves & (batch.address != 0))
        births = (batch.kind[rows] == EventKind.ALLOCATION).tolist()
        sizes = np.maximum(batch.size_bytes[rows], 0).tolist()
        placed = map(self._place, batch.address[rows].tolist(), sizes, births)
        addresses[rows] = np.fromiter(placed, np.uint64, len(rows))
        return addresses

    def range(self) -> Range:
        """All that was laid out."""
        return Range(_FIRST, self._next - _FIRST)

    def _place(self, number: int, size: int, is_birth: bool) -> int:
        """Where the storage with this number is, before it is gone if this is not its birth."""
        rounded = max(1, -(-size // _ROUNDED_TO)) * _ROUNDED_TO
        known = self._places.pop(number, None)
        if known is not None:
            address, taken = known
            self._free.setdefault(taken, []).append(address)
            if not is_birth:
                return address
        reusable = self._free.get(rounded)
        if reusable and is_birth:
            address = reusable.pop()
        else:
            # What is released but was never seen lived beside all others, from before the recording.
            address, self._next = self._next, self._next + rounded
        if is_birth:
            self._places[number] = address, rounded
        return address
