"""How many bytes each group holds at one place, after any event: a category, and who made them.

Who made an allocation is its module; where none is known, the user's own code that asked for it; else the
operator.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from memexport.analysis.category_bytes import CATEGORIES, ByteChanges
from memexport.analysis.frames import own_code, parse_frame
from memexport.analysis.live import NEVER, Allocations, LiveSet
from memexport.analysis.palette import shown_category
from memexport.model import Category, Column, EventBatch, StringTable, Tables

_CODE_FRAMES: Final = 2
_ID_BITS: Final = 32
_MAKER_BITS: Final = 2
_SHOWN: Final = np.array([shown_category(number) for number in range(256)], np.int64)


class Maker(enum.IntEnum):
    """What a group is named after."""

    UNKNOWN = 0
    MODULE = 1
    CODE = 2
    OPERATOR = 3


class Group(NamedTuple):
    """Allocations of one category by one maker; `name` is None exactly for an unknown maker."""

    category: Category
    maker: Maker
    name: str | None


@dataclass(frozen=True)
class GroupChanges:
    """What changed the bytes of one place, in the order of its events.

    Attributes:
        before: bytes by group before the first change.
        position: of the event, ascending; an event may change several groups.
        group: whose bytes.
        size_bytes: how many more; negative: fewer.
        category_of: the category of each group.
    """

    before: Column
    position: Column
    group: Column
    size_bytes: Column
    category_of: Column

    def by_category(self) -> ByteChanges:
        """The same changes, of categories."""
        before = np.zeros(CATEGORIES, np.int64)
        np.add.at(before, self.category_of, self.before)
        return ByteChanges(before, self.position, self.category_of[self.group], self.size_bytes)

    def rows_after(self, positions: Column) -> Iterator[Column]:
        """Bytes by group right after the event at each of these ascending positions; −1: before the first.

        The array is the same one every time: who keeps it copies it.
        """
        now = self.before.copy()
        for begin, stop in pairwise([0, *np.searchsorted(self.position, positions, "right").tolist()]):
            np.add.at(now, self.group[begin:stop], self.size_bytes[begin:stop])
            yield now

    def end(self) -> Column:
        """Bytes by group after the last change."""
        now = self.before.copy()
        np.add.at(now, self.group, self.size_bytes)
        return now


class GroupBytes:
    """Follows one place (a device of a rank) through a recording, a batch at a time.

    Memory grows with what is live at once and with the number of groups.
    """

    def __init__(self, tables: Tables) -> None:
        self._live = LiveSet()
        self._tables = tables
        self._code = _Code(tables)
        self._keys = np.empty(0, np.int64)
        self._group_of_key = np.empty(0, np.int64)
        self._key_of_group = np.empty(0, np.int64)
        self._now = np.empty(0, np.int64)

    def now(self) -> Column:
        """Bytes by group after everything that was added."""
        return self._now

    def add(self, batch: EventBatch, positions: Column) -> GroupChanges:
        """Take the events at these ascending positions, all of this place; what they changed."""
        lifetimes = self._live.add(batch, positions)
        gone, died = lifetimes.carried_end != NEVER, lifetimes.born_end != NEVER
        ended = lifetimes.carried.take(gone)
        born = self._groups(lifetimes.born)
        sizes = _sizes(lifetimes.born)
        position = np.concatenate(
            (lifetimes.carried_end[gone], lifetimes.born_end[died], lifetimes.born_start)
        )
        group = np.concatenate((self._groups(ended), born[died], born))
        size = np.concatenate((-_sizes(ended), -sizes[died], sizes))
        # NumPy sorts numbers of 16 bits by their digits, several times as fast as longer ones.
        order = np.argsort(position.astype(np.uint16) if len(batch) <= 1 << 16 else position, kind="stable")
        before = np.concatenate((self._now, np.zeros(len(self._keys) - len(self._now), np.int64)))
        changes = GroupChanges(before, position[order], group[order], size[order], self._categories())
        self._now = changes.end()
        return changes

    def group(self, number: int) -> Group:
        """What the group with this number is."""
        key = int(self._key_of_group[number])
        maker = Maker(key >> _ID_BITS & (1 << _MAKER_BITS) - 1)
        table: StringTable = self._code.labels if maker is Maker.CODE else self._tables.strings
        name = table.get(key & (1 << _ID_BITS) - 1) if maker is not Maker.UNKNOWN else None
        return Group(Category(key >> _ID_BITS + _MAKER_BITS), maker, name)

    def _categories(self) -> Column:
        categories: Column = self._key_of_group >> _ID_BITS + _MAKER_BITS
        return categories

    def _groups(self, allocations: Allocations) -> Column:
        """The group of each allocation; what is new gets the next number."""
        keys = self._packed(allocations)
        rows = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), bool)
        if len(self._keys):
            known = self._keys[np.minimum(rows, len(self._keys) - 1)] == keys
        if not known.all():
            self._insert(np.unique(keys[~known]))
            rows = np.searchsorted(self._keys, keys)
        groups: Column = self._group_of_key[rows]
        return groups

    def _insert(self, keys: Column) -> None:
        rows = np.searchsorted(self._keys, keys)
        numbers = len(self._keys) + np.arange(len(keys))
        self._keys = np.insert(self._keys, rows, keys)
        self._group_of_key = np.insert(self._group_of_key, rows, numbers)
        self._key_of_group = np.concatenate((self._key_of_group, keys))

    def _packed(self, allocations: Allocations) -> Column:
        columns = allocations.columns
        name = columns["module"].astype(np.int64)
        maker = np.where(name != 0, Maker.MODULE, Maker.UNKNOWN).astype(np.int64)
        if not name.all():
            for column, other in ((self._code.of(columns["stack"], name == 0), Maker.CODE),
                                  (columns["name"], Maker.OPERATOR)):  # fmt: skip
                fits = (maker == Maker.UNKNOWN) & (column != 0)
                name, maker = np.where(fits, column, name), np.where(fits, other, maker)
        category = _SHOWN[columns["category"]]
        packed: Column = (category << _MAKER_BITS | maker) << _ID_BITS | name
        return packed


class _Code:
    """The user's own code in Python stacks, as text of which there is little."""

    def __init__(self, tables: Tables) -> None:
        self.labels = StringTable()
        self._tables = tables
        self._label_of = np.zeros(1, np.int64)

    def of(self, stacks: Column, wanted: Column) -> Column:
        """The label of each stack; 0 where it is not wanted, or there is none."""
        stacks = np.where(wanted, stacks, 0)
        if not stacks.any():
            return np.zeros(len(stacks), np.int64)
        if (missing := len(self._tables.stacks) - len(self._label_of)) > 0:
            self._label_of = np.concatenate((self._label_of, np.full(missing, -1, np.int64)))
        for stack in np.unique(stacks[self._label_of[stacks] < 0]).tolist():
            self._label_of[stack] = self._label(stack)
        labels: Column = self._label_of[stacks]
        return labels

    def _label(self, stack: int) -> int:
        frames = [parse_frame(self._tables.strings[frame]) for frame in self._tables.stacks.frames(stack)]
        code = own_code(frames, _CODE_FRAMES)
        return self.labels.intern(" › ".join(code)) if code else 0


def _sizes(allocations: Allocations) -> Column:
    """Bytes; what is of unknown size counts as nothing."""
    return np.maximum(allocations.columns["size_bytes"], 0)
