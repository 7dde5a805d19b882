"""What each category of a device's memory comes to over time, for counters below `allocated`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from memexport.analysis.live import NEVER
from memexport.exporters._residence import Residence
from memexport.model import Category

UNATTRIBUTED: Final = int(Category.UNATTRIBUTED)
_EXPLAINING: Final = tuple(int(c) for c in Category if c not in (Category.UNKNOWN, Category.UNATTRIBUTED))

Ints = npt.NDArray[np.int64]


class CategoryChange(NamedTuple):
    """A category's bytes at the moments at which they changed."""

    category: int
    time_ns: Ints
    bytes: Ints


class CategoryCounters:
    """The categories of one place.

    Nothing is said before the first allocation of a category that explains something. From then on, all
    categories that ever occurred and UNATTRIBUTED, the rest, sum to `allocated`. An allocation of a category
    that only a later version of the model has is UNATTRIBUTED here.
    """

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self._unattributed: int | None = None
        self._allocated = -1

    def add(self, residence: Residence) -> Iterator[CategoryChange]:
        """What changed in one more batch."""
        place, category, size = _moves(residence)
        total = np.zeros(len(residence.positions), np.int64)
        before = sum(self._bytes.values())
        for known in np.flatnonzero(np.bincount(category)).tolist():
            rows = category == known
            change = np.zeros(len(total), np.int64)
            np.add.at(change, place[rows], size[rows])
            total += change
            yield self._change(known, change, residence)
        if self._bytes:
            yield from self._rest(before + np.cumsum(total), residence)

    def _change(self, category: int, change: Ints, residence: Residence) -> CategoryChange:
        moments = np.flatnonzero(change)
        values = self._bytes.get(category, 0) + np.cumsum(change[moments])
        self._bytes[category] = int(values[-1]) if len(values) else self._bytes.get(category, 0)
        return CategoryChange(category, _times(residence, moments), values)

    def _rest(self, explained: Ints, residence: Residence) -> Iterator[CategoryChange]:
        """What `allocated` holds beyond what is explained, wherever the counter is known."""
        allocated = _carried_on(residence.allocated_bytes, self._allocated)
        known = np.flatnonzero(allocated >= 0)
        if not len(known):
            return
        self._allocated = int(allocated[-1])
        rest = allocated[known] - explained[known]
        changed = np.diff(rest, prepend=rest[0]) != 0
        changed[0] = self._unattributed is None or int(rest[0]) != self._unattributed
        self._unattributed = int(rest[-1])
        if changed.any():
            yield CategoryChange(UNATTRIBUTED, _times(residence, known[changed]), rest[changed])


def _moves(residence: Residence) -> tuple[Ints, Ints, Ints]:
    """Bytes that came (> 0) or went: at which of the residence's positions, of which category, how many."""
    lifetimes = residence.lifetimes
    gone, inner = lifetimes.carried_end != NEVER, lifetimes.born_end != NEVER
    position = np.concatenate((lifetimes.born_start, lifetimes.carried_end[gone], lifetimes.born_end[inner]))
    carried, born = lifetimes.carried.columns, lifetimes.born.columns
    category = np.concatenate((born["category"], carried["category"][gone], born["category"][inner]))
    size = np.concatenate((born["size_bytes"], -carried["size_bytes"][gone], -born["size_bytes"][inner]))
    explains = np.isin(category, _EXPLAINING) & (size != np.iinfo(np.int64).min)
    place = np.searchsorted(residence.positions, position[explains])
    return place, category[explains], size[explains]


def _times(residence: Residence, events: Ints) -> Ints:
    times: Ints = residence.end_ns[residence.positions[events]]
    return times


def _carried_on(values: npt.NDArray[Any], before: int) -> Ints:
    """The counter with its unknown values replaced by the last known one."""
    if values.min(initial=0) >= 0:
        return values
    last = np.maximum.accumulate(np.where(values >= 0, np.arange(len(values)), -1))
    return np.where(last >= 0, values[last], before)
