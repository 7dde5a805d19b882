"""How many bytes of each category are live at one place, after any event: from what changed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.live import NEVER, Lifetimes, LiveSet
from memexport.model import Category, Column, EventBatch

CATEGORIES: Final = max(Category) + 1
"""The width of a row of bytes by category."""


@dataclass(frozen=True)
class ByteChanges:
    """What changed the live bytes of one place, in the order of its events.

    Attributes:
        before: bytes by category before the first change.
        position: of the event, ascending; an event may change several categories.
        category: whose bytes.
        size_bytes: how many more; negative: fewer.
    """

    before: Column
    position: Column
    category: Column
    size_bytes: Column

    def after(self, positions: Column) -> Column:
        """Bytes by category right after the events at these positions: a row for each."""
        rows = np.repeat(self.before[None, :], len(positions), axis=0)
        for category in np.unique(self.category).tolist():
            here = self.category == category
            sums = np.concatenate(([0], np.cumsum(self.size_bytes[here])))
            rows[:, category] += sums[np.searchsorted(self.position[here], positions, "right")]
        return rows

    def totals_after(self, positions: Column) -> Column:
        """Bytes of all categories right after the events at these positions."""
        sums = np.concatenate(([0], np.cumsum(self.size_bytes))) + self.before.sum()
        totals: Column = sums[np.searchsorted(self.position, positions, "right")]
        return totals

    def end(self) -> Column:
        """Bytes by category after the last change."""
        row = self.before.copy()
        np.add.at(row, self.category, self.size_bytes)
        return row


class CategoryBytes:
    """Follows one place (a device of a rank) through a recording, a batch at a time.

    Memory grows with what is live at once.
    """

    def __init__(self) -> None:
        self._live = LiveSet(("size_bytes", "category", "module"))
        self._now = np.zeros(CATEGORIES, np.int64)

    def now(self) -> Column:
        """Bytes by category after everything that was added."""
        return self._now

    def by_module(self, category: Category) -> dict[int, int]:
        """The live bytes of a category by module."""
        live = self._live.live().columns
        here = live["category"] == category
        modules, index = np.unique(live["module"][here], return_inverse=True)
        sums = np.bincount(index, weights=_sizes(live["size_bytes"][here]), minlength=len(modules))
        return dict(zip(modules.tolist(), sums.astype(np.int64).tolist(), strict=True))

    def add(self, batch: EventBatch, positions: Column) -> ByteChanges:
        """Take the events at these ascending positions, all of this place; what they changed."""
        changes = _changes(self._live.add(batch, positions), self._now)
        self._now = changes.end()
        return changes


def _changes(lifetimes: Lifetimes, before: Column) -> ByteChanges:
    carried, born = lifetimes.carried.columns, lifetimes.born.columns
    gone, died = lifetimes.carried_end != NEVER, lifetimes.born_end != NEVER
    parts = [
        (lifetimes.carried_end[gone], carried["category"][gone], -_sizes(carried["size_bytes"][gone])),
        (lifetimes.born_end[died], born["category"][died], -_sizes(born["size_bytes"][died])),
        (lifetimes.born_start, born["category"], _sizes(born["size_bytes"])),
    ]
    position, category, size = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(position, kind="stable")
    return ByteChanges(before, position[order], category[order].astype(np.intp), size[order])


def _sizes(sizes: Column) -> Column:
    """Bytes; what is of unknown size counts as nothing."""
    return np.maximum(sizes, 0)
