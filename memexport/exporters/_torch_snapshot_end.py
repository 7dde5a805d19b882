"""The state that a torch snapshot ends with: segments, and the blocks in them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.ranges import ADDRESSES, Range

ALLOCATED: Final = "active_allocated"
PENDING: Final = "active_pending_free"
INACTIVE: Final = "inactive"

_ALIGNED_TO: Final = 2 << 20
"""Where the segments of the allocator begin."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """A block of a segment: so many bytes from an address on.

    Attributes:
        context: the stack, module and name that it was made with, as ids; all 0 where nothing is known.
    """

    address: int
    size: int
    state: str
    context: tuple[int, int, int] = (0, 0, 0)


@dataclass
class Segment:
    """A segment. Its blocks, by address, leave no gap up to `used`."""

    address: int
    total_size: int
    stream: int = 0
    stack: int = 0
    blocks: list[Block] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.total_size

    @property
    def used(self) -> int:
        """The first address behind its last block."""
        return self.blocks[-1].address + self.blocks[-1].size if self.blocks else self.address

    def put(self, block: Block) -> bool:
        """Add a block behind the last one; false if it does not lie there."""
        if block.address < self.used or block.address + block.size > self.end:
            return False
        self.fill(block.address)
        self.blocks.append(block)
        return True

    def fill(self, end: int) -> None:
        """Add an inactive block up to this address, if there is room."""
        if end > self.used:
            self.blocks.append(Block(self.used, end - self.used, INACTIVE))

    def take(self, size: int, state: str) -> int:
        """Add a block of this size behind the last one; its size."""
        if size:
            self.blocks.append(Block(self.used, size, state))
        return size

    def take_free(self, size: int, state: str) -> int:
        """Use the ends of inactive blocks for this many bytes; for how many there was room."""
        taken, blocks = 0, []
        for block in self.blocks:
            part = min(block.size, size - taken) if block.state == INACTIVE else 0
            if part < block.size:
                blocks.append(replace(block, size=block.size - part))
            if part:
                blocks.append(Block(block.address + block.size - part, part, state))
            taken += part
        self.blocks = blocks
        return taken

    def sum_of(self, *states: str) -> int:
        """The bytes of the blocks that are in one of these states."""
        return sum(block.size for block in self.blocks if block.state in states)


class Coverage:
    """The addresses that were ever in use, where nothing tells of segments.

    Allocations that touch or overlap, at the same time or not, are covered as one.
    """

    def __init__(self) -> None:
        self._begin = np.empty(0, np.uint64)
        self._end = np.empty(0, np.uint64)

    def add(self, address: npt.NDArray[np.uint64], size: Ints) -> None:
        """Cover these bytes."""
        begin = np.concatenate((self._begin, address))
        room = np.uint64(ADDRESSES - 1) - address
        end = np.concatenate((self._end, address + np.minimum(np.maximum(size, 0).astype(np.uint64), room)))
        order = np.argsort(begin, kind="stable")
        begin, reach = begin[order], np.maximum.accumulate(end[order])
        first = np.concatenate(([True], begin[1:] > reach[:-1]))[: len(begin)]
        last = np.concatenate((first[1:], [True]))[: len(begin)]
        self._begin, self._end = begin[first], reach[last]

    def ranges(self) -> Iterator[Range]:
        """What is covered, by address."""
        for begin, end in zip(self._begin.tolist(), self._end.tolist(), strict=True):
            yield Range(begin, end - begin)


def laid_out(ranges: Sequence[Range], blocks: Sequence[Block]) -> list[Segment]:
    """The segments with their blocks, and what lies between these as inactive blocks.

    Args:
        ranges: the segments, by address, without overlaps. Neighbours that a block reaches across become one,
            as those that are mapped piece by piece.
        blocks: in use; one that lies in no segment, or where another is already, gets one of its own.
    """
    segments = list(_joined(ranges, blocks))
    starts = [segment.address for segment in segments]
    own: list[Segment] = []
    for block in sorted(blocks, key=lambda block: block.address):
        place = bisect_right(starts, block.address) - 1
        if place < 0 or not segments[place].put(block):
            own.append(Segment(block.address, block.size, blocks=[block]))
    for segment in segments:
        segment.fill(segment.end)
    return sorted([*segments, *own], key=lambda segment: segment.address)


def with_rest(segments: list[Segment], reserved_bytes: int, rest: Mapping[str, int]) -> list[Segment]:
    """The segments with what the counters have beyond the segments and blocks that are known.

    It lies in a segment behind all others, as large as what is reserved beyond them, then where segments have
    room; what still finds none makes that segment larger.

    Args:
        segments: what is known; changed.
        reserved_bytes: what the counter says; -1 if it is not known.
        rest: how much else is in use, by state.
    """
    size = max(0, reserved_bytes - sum(segment.total_size for segment in segments))
    last = max((segment.end for segment in segments), default=0)
    address = (last // _ALIGNED_TO + 1) * _ALIGNED_TO
    # Where addresses end, the file makes no sense: then what follows need not lie behind the others.
    fits = address + size + sum(rest.values()) < ADDRESSES
    behind = Segment(address if fits else _ALIGNED_TO, size)
    for state, wanted in rest.items():
        left = wanted - behind.take(min(wanted, behind.end - behind.used), state)
        for segment in segments:
            left -= segment.take_free(left, state)
        behind.total_size += left
        behind.take(left, state)
    behind.fill(behind.end)
    return [*segments, behind] if behind.total_size else segments


def _joined(ranges: Sequence[Range], blocks: Sequence[Block]) -> Iterator[Segment]:
    starts = [mapped.address for mapped in ranges]
    crossed: set[int] = set()
    for block in blocks:
        first = bisect_right(starts, block.address)
        crossed.update(range(max(1, first), bisect_left(starts, block.address + block.size)))
    segment: Segment | None = None
    for place, mapped in enumerate(ranges):
        if segment is not None and place in crossed and segment.end == mapped.address:
            segment.total_size += mapped.size_bytes
            continue
        if segment is not None:
            yield segment
        segment = Segment(mapped.address, mapped.size_bytes, mapped.stream, mapped.stack)
    if segment is not None:
        yield segment
