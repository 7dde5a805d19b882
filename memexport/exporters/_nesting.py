"""Keeps the slices of one track nested, although a slice comes only after everything in it.

A viewer draws a track's slices as a stack: a begin opens, an end closes the innermost. Two slices that
overlap without one holding the other would be given each other's lengths, in silence. So would a slice that
begins at the same nanosecond as one written long before, which it should be around.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]

# Remembered for each track: enough for the slices of a very long step, at 24 bytes each.
_REMEMBERED: Final = 65_536


class Nesting:
    """The outermost slices of a track so far, to which later ones must fit."""

    def __init__(self) -> None:
        none = np.empty(0, np.int64)
        self._begin, self._end, self._drawn = none, none, none

    def fit(self, begin_ns: Times, end_ns: Times) -> tuple[Times, npt.NDArray[np.bool_]]:
        """Where to draw the next slices, which are ordered by their ends.

        Returns:
            Where each begins, and whether it fits on the track. A slice around one that was written before
            and begins at the same time is drawn from a nanosecond earlier, if nothing else lies there.
        """
        begin, end = np.concatenate((self._begin, begin_ns)), np.concatenate((self._end, end_ns))
        new = len(self._begin)
        fits = np.ones(len(begin), np.bool_)
        around, first_inside = _around(begin, end, new)
        drawn = np.concatenate((self._drawn, begin_ns))
        if len(around):
            fits[around] = _lowest(begin, first_inside, around) >= begin[around]
            self._draw_around_known(begin, drawn, fits, around[fits[around]])
        self._remember(begin[fits], end[fits], drawn[fits])
        return drawn[new:], fits[new:]

    def _draw_around_known(
        self, begin: Times, drawn: Times, fits: npt.NDArray[np.bool_], around: npt.NDArray[Any]
    ) -> None:
        """Move those around known slices to before where these are drawn; they are few, one a level."""
        place = np.searchsorted(self._begin, begin[around])
        known = place < len(self._begin)
        earliest: dict[int, int] = {}
        for row, inner in zip(around[known].tolist(), place[known].tolist(), strict=True):
            moved = min(int(begin[row]), earliest.get(inner, int(self._drawn[inner])) - 1)
            # Where the one before ends, nothing may begin earlier.
            if moved >= (int(self._end[inner - 1]) if inner else 0):
                earliest[inner] = drawn[row] = moved
            else:
                fits[row] = False

    def _remember(self, begin: Times, end: Times, drawn: Times) -> None:
        """Keep those that no later one is around."""
        lowest_after = np.minimum.accumulate(begin[::-1])[::-1]
        outermost = np.ones(len(begin), np.bool_)
        outermost[:-1] = lowest_after[1:] > begin[:-1]
        kept = np.flatnonzero(outermost)[-_REMEMBERED:]
        self._begin, self._end, self._drawn = begin[kept], end[kept], drawn[kept]


class Nestings:
    """The nesting of every track of a trace, and places for the slices that do not fit."""

    def __init__(self, beside: Callable[[int, int], int]) -> None:
        """`beside(track, lane)` gives the track that is lane n (from 0) beside a track."""
        self._beside = beside
        self._nestings: dict[int, Nesting] = {}
        self._lane_ends: dict[int, list[int]] = {}

    def fit(self, track: Times, begin_ns: Times, end_ns: Times) -> tuple[Times, Times]:
        """Where each slice is to be drawn: its begin and its track."""
        drawn_begin, drawn_track = begin_ns.copy(), track.copy()
        for number in np.unique(track).tolist():
            rows = np.flatnonzero(track == number)
            nesting = self._nestings.setdefault(number, Nesting())
            drawn, fits = nesting.fit(begin_ns[rows], end_ns[rows])
            drawn_begin[rows[fits]] = drawn[fits]
            for row in rows[~fits].tolist():
                lane = self._lane(number, int(begin_ns[row]), int(end_ns[row]))
                drawn_track[row] = self._beside(number, lane)
        return drawn_begin, drawn_track

    def _lane(self, track: int, begin_ns: int, end_ns: int) -> int:
        """The first lane on which nothing lies any more; slices come in the order of their ends."""
        ends = self._lane_ends.setdefault(track, [])
        for lane, end in enumerate(ends):
            if end <= begin_ns:
                ends[lane] = end_ns
                return lane
        ends.append(end_ns)
        return len(ends) - 1


def _around(begin: Times, end: Times, new: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The slices from place `new` on that are around earlier ones, and the first that each overlaps."""
    first_inside = np.searchsorted(end, begin[new:], side="right")
    around = np.flatnonzero(first_inside < np.arange(new, len(begin)))
    return around + new, first_inside[around]


def _lowest(values: Times, first: npt.NDArray[Any], stop: npt.NDArray[Any]) -> Times:
    """The minimum of `values[first:stop]`, range by range; all of them hold something."""
    bounds = np.stack((first, stop), axis=1).ravel()
    lowest: Times = np.minimum.reduceat(values, bounds)[::2]
    return lowest
