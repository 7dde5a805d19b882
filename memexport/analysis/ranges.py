"""Ranges of addresses that come and go: the segments of an allocator."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final, NamedTuple

ADDRESSES: Final = 2**64
"""How many there are: a damaged file may claim more."""


class Range(NamedTuple):
    """Bytes from an address on, and what was said of them when they came."""

    address: int
    size_bytes: int
    stream: int = 0
    stack: int = 0

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.size_bytes


class Ranges:
    """What is mapped now. Ranges do not overlap: a new one takes the place of what it covers.

    A change costs a search and a move in an array of addresses, which suits the thousands of segments of an
    allocator, not the millions of its blocks.
    """

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._ranges: dict[int, Range] = {}

    def add(self, new: Range) -> None:
        """Map a range, as far as there are addresses; one without bytes changes nothing."""
        self.cut(new.address, new.size_bytes)
        size_bytes = min(new.size_bytes, ADDRESSES - new.address)
        if size_bytes > 0:
            self._insert(new._replace(size_bytes=size_bytes))

    def cut(self, address: int, size_bytes: int) -> None:
        """Unmap these bytes, as far as they are mapped; what a range has on either side stays."""
        end = address + size_bytes
        for known in list(self._overlapping(address, end)):
            self._addresses.pop(bisect_left(self._addresses, known.address))
            del self._ranges[known.address]
            if known.address < address:
                self._insert(known._replace(size_bytes=address - known.address))
            if known.end > end:
                self._insert(known._replace(address=end, size_bytes=known.end - end))

    def __iter__(self) -> Iterator[Range]:
        """By ascending address."""
        return (self._ranges[address] for address in self._addresses)

    def _insert(self, new: Range) -> None:
        insort(self._addresses, new.address)
        self._ranges[new.address] = new

    def _overlapping(self, address: int, end: int) -> Iterator[Range]:
        first = bisect_right(self._addresses, address) - 1
        for place in range(max(0, first), len(self._addresses)):
            known = self._ranges[self._addresses[place]]
            if known.address >= end:
                return
            if known.end > address:
                yield known
