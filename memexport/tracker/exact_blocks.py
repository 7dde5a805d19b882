"""Which of the allocator's blocks is which storage.

The allocator's record has sizes and an order, no addresses. That is enough: a storage that an operator
returns is the latest block of its size that no storage has yet, and what is given back right after a storage
died is its block. Of two blocks of one size in one operator, the wrong one may be taken; no sum changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from memexport.tracker.storages import RELEASE_AFTER_ALLOCATION

Row = tuple[int, int, int, int, int]
"""As in `rows.ROW`."""


@dataclass(slots=True)
class _Block:
    """A piece of memory that is allocated.

    Attributes:
        number: in its rows.
        code: of its RELEASE row.
        context: of its RELEASE row; None: wherever it is given back.
        window: when its storage died.
    """

    number: int
    size: int
    code: int
    context: int | None = None
    window: int = 0


class Blocks:
    """Told of everything in the order of time, makes the ALLOCATION and RELEASE rows.

    Args:
        next_number: numbers blocks; shared with what else numbers storages.
    """

    def __init__(self, next_number: Callable[[], int]) -> None:
        self._next_number = next_number
        self._made: list[Row | None] = []
        self._of_storage: dict[int, _Block | None] = {}
        self._numbers: dict[int, int] = {}
        self._died: list[int] = []
        # By size: blocks that no storage has, those whose storage died, and the places in `_made` of releases
        # that nobody knows the block of yet.
        self._unclaimed: dict[int, list[_Block]] = {}
        self._dying: dict[int, list[_Block]] = {}
        self._early: dict[int, list[int]] = {}
        self._stranger_died = False
        self._window = 0

    def allocated(self, size: int, time: int, code: int, context: int) -> None:
        """The allocator gave a block of this size; `code` is for its row."""
        self._stranger_died = False
        number = self._next_number()
        self._made.append((code, context, time, size, number))
        block = _Block(number, size, code + RELEASE_AFTER_ALLOCATION)
        self._unclaimed.setdefault(size, []).append(block)

    def found(self, storage: int, size: int) -> bool:
        """A storage was seen for the first time; whether it has a block.

        It has none if it lived before the record began, or if its memory came from elsewhere.
        """
        self._stranger_died = False
        block = _take(self._unclaimed, size, -1)
        if block is not None:
            self._of_storage[storage] = block
            self._numbers[storage] = block.number
        return block is not None

    def died(self, storage: int, size: int, code: int, context: int) -> bool:
        """A storage died, and its memory is about to be given back; whether it had a block.

        `code` and `context` are for the row that says so.
        """
        is_stranger = storage not in self._of_storage
        early = _take(self._early, size, 0)
        self._stranger_died = is_stranger and early is None
        self._died.append(storage)
        block = self._of_storage.pop(storage, None)
        if block is None:
            if early is not None:
                self._made[early] = None
            return not is_stranger
        block.code, block.context, block.window = code, context, self._window
        if early is not None:
            self._give_back(block, early)
        else:
            self._dying.setdefault(size, []).append(block)
        return True

    def released(self, size: int, time: int, context: int) -> None:
        """The allocator took back a block of this size, in this context."""
        if self._stranger_died:  # its memory: the allocator remembers sizes from an earlier recording
            self._stranger_died = False
            return
        at = len(self._made)
        self._made.append((0, context, time, size, 0))
        block = _take(self._dying, size, 0) or _take(self._unclaimed, size, -1)
        if block is not None:
            self._give_back(block, at)
        else:
            self._early.setdefault(size, []).append(at)  # that its storage died is still to be said

    def number(self, storage: int) -> int | None:
        """The number of its block, also if it died since the last `end_window`; None if it has none."""
        return self._numbers.get(storage)

    def rows(self) -> list[Row]:
        """What was made since the last `end_window`."""
        return [row for row in self._made if row is not None]

    def decide(self, now: int) -> None:
        """Nothing more is known up to now: decide what could still have been decided by what follows."""
        for size, early in self._early.items():
            for at in early:
                self._give_back_any(size, at)
        self._early.clear()
        for size in list(self._dying):
            while self._dying.get(size, [_NOBODY])[0].window < self._window:
                # What died a window ago was given back in a thread that is not recorded.
                block = _take(self._dying, size, 0) or _NOBODY
                self._made.append((block.code, block.context or 0, now, size, block.number))

    def end_window(self) -> None:
        """Forget the rows, and the storages that died."""
        self._made.clear()
        for storage in self._died:
            self._numbers.pop(storage, None)
        self._died.clear()
        self._window += 1

    def _give_back(self, block: _Block, at: int) -> None:
        row = self._made[at]
        if row is not None:
            context = row[1] if block.context is None else block.context
            self._made[at] = (block.code, context, row[2], block.size, block.number)

    def _give_back_any(self, size: int, at: int) -> None:
        """A block of this size is gone, and every storage lives: one of them has lost its memory."""
        for storage, block in reversed(self._of_storage.items()):
            if block is not None and block.size == size:
                self._give_back(block, at)
                self._of_storage[storage] = None
                return
        self._made[at] = None  # it lived before the record began, and Python knew of no storage


_NOBODY: Final = _Block(0, 0, 0, window=2**63)
_T = TypeVar("_T")


def _take(lists: dict[int, list[_T]], size: int, place: int) -> _T | None:
    """The first (0) or latest (−1) of the list of this size, which it leaves; None if there is none."""
    found = lists.get(size)
    if found is None:
        return None
    taken = found.pop(place)
    if not found:
        del lists[size]
    return taken
