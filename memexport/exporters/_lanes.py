"""Lanes for intervals that overlap: each lies on one, and a lane is used again once it is free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class LanePool:
    """Lanes 0, 1, 2 … of one chart; the one that became free last is taken first.

    That makes the free lanes a stack, and who takes which lane a matter of matching brackets, which needs no
    loop over the changes: a lane given back opens one, a lane taken closes it.

    Attributes:
        count: how many lanes there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._free = np.empty(0, np.int64)

    def assign(self, takes: Mask, lane: Ints, taken_at: Ints) -> Ints:
        """The lane of every change, in the order in which they happen.

        Args:
            takes: whether the change takes a lane; else it gives one back.
            lane: what a change gives back, where an earlier call gave it out; −1 elsewhere.
            taken_at: for a change that gives back what this call gives out: which change took it.
        """
        free = len(self._free)
        closes = np.concatenate((np.zeros(free, np.bool_), takes))
        opened, closed = _match(closes)
        source = np.arange(len(closes))
        source[closed] = opened
        inner = np.flatnonzero(~takes & (lane < 0))
        source[free + inner] = free + taken_at[inner]
        lanes = np.concatenate((self._free, lane))
        fresh = closes.copy()
        fresh[closed] = False
        lanes[fresh] = self.count + np.arange(np.count_nonzero(fresh))
        self.count += int(np.count_nonzero(fresh))
        lanes = lanes[_roots(source)]
        left = ~closes
        left[opened] = False
        self._free = lanes[left]
        return lanes[free:]


def _match(closes: Mask) -> tuple[Ints, Ints]:
    """Which opening bracket each closing one belongs to: their places, pair by pair.

    Between two heights a walk goes up and down in turns, so neighbours at one height belong together.
    """
    height = np.cumsum(np.where(closes, -1, 1)) + closes
    order = np.argsort(height, kind="stable")
    height, is_close = height[order], closes[order]
    pairs = np.flatnonzero(is_close[1:] & (height[1:] == height[:-1]))
    return order[pairs], order[pairs + 1]


def _roots(source: Ints) -> Ints:
    """Where following `source` ends, for every place; each jump doubles the length of the next."""
    while True:
        further = source[source]
        if np.array_equal(further, source):
            return source
        source = further
