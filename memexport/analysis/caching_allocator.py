"""What CUDA's caching allocator would reserve for these allocations, worked out without a device.

The rules are those of torch 2.13 (`c10/cuda/CUDACachingAllocator.cpp`; constants and settings in
`c10/core/AllocatorConfig.h`), for one stream:

- A request is rounded up to 512 bytes, or to a division of its power of two (`roundup_power2_divisions`).
- Up to 1 MiB it is served from segments of 2 MiB, below 10 MiB from segments of 20 MiB
  (`large_segment_size_mb`), above from one of its own, rounded up to 2 MiB. Small and large never mix.
- The smallest free block that fits is taken, at equal size the one with the lowest address. What it has too
  much is split off: from 512 bytes on among the small, above 1 MiB among the large; else it is wasted.
- A block that is given back merges with its free neighbours. Segments are kept. Only when the device has no
  room for a new one, those that are wholly free are given back, and the request is tried once more.

So `allocated` is the sum of the blocks, as `torch.cuda.memory_allocated` says it, and not of what was asked
for; `reserved` is the sum of the segments. Not simulated: other streams, `garbage_collection_threshold`,
`expandable_segments`, private pools of CUDA graphs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from memexport.analysis.allocator_settings import (
    MIN_BLOCK,
    SEGMENT_UNIT,
    SMALL,
    UNLIMITED,
    AllocatorSettings,
)


class _Block:
    """A part of a segment, between its neighbours."""

    __slots__ = ("address", "following", "free", "preceding", "size")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.free = False
        self.preceding: _Block | None = None
        self.following: _Block | None = None

    def is_segment(self) -> bool:
        """Whether it is a whole segment."""
        return self.preceding is None and self.following is None


@dataclass
class _Pool:
    """The free blocks of one kind, by size and then address."""

    least_remainder: int
    order: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)

    def add(self, block: _Block) -> None:
        block.free = True
        self.blocks[block.address] = block
        insort(self.order, (block.size, block.address))

    def remove(self, block: _Block) -> None:
        block.free = False
        del self.blocks[block.address]
        del self.order[bisect_left(self.order, (block.size, block.address))]

    def smallest(self, size: int) -> _Block | None:
        """The best block of at least this size."""
        place = bisect_left(self.order, (size, 0))
        return self.blocks[self.order[place][1]] if place < len(self.order) else None


class CachingAllocator:
    """One device's allocator; see the module.

    Attributes:
        allocated: bytes in blocks that are in use.
        reserved: bytes in segments.
        retries: how often cached segments were given back because a new one did not fit.
        failures: how many requests failed. They are served nevertheless, beyond the limit, so that what
            comes after can be estimated: the limit holds only until the first of them.

    Args:
        settings: what is configured.
        limit: the most that may be reserved, in bytes.
    """

    def __init__(self, settings: AllocatorSettings | None = None, limit: int = UNLIMITED) -> None:
        self._settings = settings or AllocatorSettings()
        self._limit = limit
        self._small = _Pool(MIN_BLOCK)
        self._large = _Pool(SMALL + 1)
        self._used: dict[int, tuple[_Block, int]] = {}
        self._next_address = SEGMENT_UNIT
        self.allocated = 0
        self.reserved = 0
        self.retries = 0
        self.failures = 0

    def allocate(self, key: int, size: int) -> None:
        """Serve a request, and know it by this key until it is given back. A size of 0 takes nothing.

        What the key stood for before is given back, unless it has the same size: then nothing changes.
        """
        if key in self._used:
            if self._used[key][1] == size:
                return
            self.release(key)
        if size <= 0:
            return
        wanted = self._settings.rounded(size)
        pool = self._small if wanted <= SMALL else self._large
        block = self._cached(pool, wanted) or self._new_segment(wanted)
        self._split(pool, block, wanted)
        self._used[key] = block, size
        self.allocated += block.size

    def release(self, key: int) -> None:
        """Give back what this key stands for; nothing if it is not known."""
        found = self._used.pop(key, None)
        if found is None:
            return
        block = found[0]
        self.allocated -= block.size
        pool = self._small if self._settings.rounded(found[1]) <= SMALL else self._large
        self._merge(pool, block)
        pool.add(block)

    def _cached(self, pool: _Pool, wanted: int) -> _Block | None:
        block = pool.smallest(wanted)
        if block is None:
            return None
        oversize = self._settings.max_split_size
        if wanted < oversize <= block.size:
            return None
        if wanted >= oversize and block.size >= wanted + self._settings.max_non_split_rounding:
            return None
        pool.remove(block)
        return block

    def _new_segment(self, wanted: int) -> _Block:
        size = self._settings.segment_for(wanted)
        if self.reserved + size > self._limit:
            self.retries += 1
            self._empty_cache()
            if self.reserved + size > self._limit:
                self.failures += 1
                self._limit = UNLIMITED
        self.reserved += size
        block = _Block(self._next_address, size)
        self._next_address += size
        return block

    def _empty_cache(self) -> None:
        for pool in (self._small, self._large):
            for block in [block for block in pool.blocks.values() if block.is_segment()]:
                pool.remove(block)
                self.reserved -= block.size

    def _split(self, pool: _Pool, block: _Block, wanted: int) -> None:
        """Give what the block has too much back to the pool, if it is worth it."""
        remainder = block.size - wanted
        if remainder < pool.least_remainder or (
            pool is self._large and wanted >= self._settings.max_split_size
        ):
            return
        rest = _Block(block.address + wanted, remainder)
        rest.preceding, rest.following = block, block.following
        if rest.following is not None:
            rest.following.preceding = rest
        block.following = rest
        block.size = wanted
        pool.add(rest)

    @staticmethod
    def _merge(pool: _Pool, block: _Block) -> None:
        """Take free neighbours in."""
        before, after = block.preceding, block.following
        if before is not None and before.free:
            pool.remove(before)
            block.address, block.preceding = before.address, before.preceding
            block.size += before.size
            if block.preceding is not None:
                block.preceding.following = block
        if after is not None and after.free:
            pool.remove(after)
            block.following = after.following
            block.size += after.size
            if block.following is not None:
                block.following.preceding = block
