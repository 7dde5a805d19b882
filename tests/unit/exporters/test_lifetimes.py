"""Lanes never hold two bars at once, and are used again; what is too small to see is not drawn."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memexport.exporters._lanes import LanePool
from memexport.exporters._lifetimes import SizeFloor
from memexport.model import UNKNOWN_SIZE


class Stack:
    """LanePool as a loop over the changes."""

    def __init__(self) -> None:
        self.free: list[int] = []
        self.count = 0

    def take(self) -> int:
        """The lane freed last, else a new one."""
        if self.free:
            return self.free.pop()
        self.count += 1
        return self.count - 1


@given(st.lists(st.lists(st.integers(-1, 30), max_size=40), max_size=5))
def test_lanes_are_those_of_a_plain_stack(calls: list[list[int]]) -> None:
    """Negative: take one; else give back what was taken as the nth of those that are out."""
    pool, stack = LanePool(), Stack()
    out: list[tuple[int, int | None]] = []  # lane, and the change of this call that took it
    for call in calls:
        takes, given_back, taken_at, expected = [], [], [], []
        out = [(lane, None) for lane, _ in out]
        for change in call:
            if change >= 0 and not out:
                continue
            takes.append(change < 0)
            if change < 0:
                expected.append(stack.take())
                out.append((expected[-1], len(takes) - 1))
                given_back.append(-1)
                taken_at.append(-1)
            else:
                lane, took = out.pop(change % len(out))
                stack.free.append(lane)
                expected.append(lane)
                given_back.append(lane if took is None else -1)
                taken_at.append(-1 if took is None else took)
        columns = (
            np.array(column, kind) for column, kind in ((takes, bool), (given_back, int), (taken_at, int))
        )
        assert pool.assign(*columns).tolist() == expected
    assert pool.count == stack.count


def admitted(floor: SizeFloor, sizes: list[int], allocated: int) -> list[bool]:
    """Which of the sizes are drawn."""
    verdict: list[bool] = floor.admit(np.array(sizes), np.array([0, allocated])).tolist()
    return verdict


def test_the_automatic_floor_rises_with_the_peak_and_never_falls() -> None:
    """A 2000th of what was ever allocated at once."""
    floor = SizeFloor(None)
    assert admitted(floor, [0, 5, 10], 10_000) == [False, True, True]
    assert admitted(floor, [499, 500], 1_000_000) == [False, True]
    assert admitted(floor, [499, 500], 100) == [False, True]
    assert (floor.drawn, floor.seen, floor.bytes) == (4, 7, 500)


def test_the_automatic_floor_doubles_with_every_fifty_thousand_bars() -> None:
    """So a long recording stays readable, whatever it allocates."""
    floor = SizeFloor(None)
    assert all(admitted(floor, [10] * 50_000, 20_000))
    assert admitted(floor, [10, 20], 20_000) == [False, True]


def test_a_fixed_floor_is_kept_and_zero_draws_everything() -> None:
    """Also what is of unknown size."""
    assert admitted(SizeFloor(100), [99, 100, UNKNOWN_SIZE], 2**40) == [False, True, False]
    assert all(admitted(SizeFloor(0), [0, 1, UNKNOWN_SIZE], 2**40))
