"""Puts what an accelerator's allocator tells between the readings of its counters.

There the counters are known after each operator, and storages have their rows. What the record adds is what
an operator takes and gives back, when it took what it returns, and how high the counter was at these moments.
It has sizes, rounded up, and an order, no addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from memexport.model import Category
from memexport.tracker import rows
from memexport.tracker.allocators import ALLOCATOR_PEAK
from memexport.tracker.chunk import Ints
from memexport.tracker.counters import UNKNOWN
from memexport.tracker.exact_window import Raw, Window
from memexport.tracker.rows import LABEL_UNIT, Labels
from memexport.tracker.storages import RELEASE_AFTER_ALLOCATION

_NEIGHBOURS: Final = 2
"""Readings on either side of one that count as much: what was told a moment too late spoils one of them."""

_BETWEEN: Final = -1
"""In the place of an operator's row: between two operators."""

Row = tuple[int, int, int, int, int]
"""As in `rows.ROW`."""


class Move(NamedTuple):
    """Something given (> 0) or taken back: how much, when, and what was allocated after it."""

    size: int
    time: int
    level: int


class DeviceJoin:
    """Joins window by window, see `exact_join`; of one device.

    Args:
        labels: what the rows' codes and contexts stand for.
        next_number: numbers what is allocated; shared with what else numbers storages.
    """

    def __init__(self, labels: Labels, next_number: Callable[[], int]) -> None:
        self._labels = labels
        self._next_number = next_number
        self._device = 0
        self._total = 0
        self._lift: int | None = None
        self._highest = UNKNOWN

    def join(self, raw: Raw, events: Raw) -> Raw:
        """The rows of a window, with what these MEMORY rows of one device add to them."""
        if len(events):
            self._device = int(events["code"][0]) % LABEL_UNIT - rows.MEMORY
        elif not self._device:
            return raw
        events = np.sort(events, order="time", kind="stable")
        window = Window.of(raw.copy())
        levels = self._levels(window, events)
        if levels is None:
            return raw
        self._highest = max(self._highest, int(levels.max(initial=UNKNOWN)))
        joined = _Joined(window, self._device, self._labels, self._next_number)
        joined.leave_out_samples(self._highest)
        moves = list(map(Move, events["first"].tolist(), events["time"].tolist(), levels.tolist()))
        operators = window.operator_at(events["time"]).tolist()
        for operator, run in itertools.groupby(zip(operators, moves, strict=True), lambda pair: pair[0]):
            joined.add(operator, [move for _, move in run])
        return joined.rows()

    def _levels(self, window: Window, events: Raw) -> Ints | None:
        """What was allocated after each event; None while no reading says from where to count."""
        totals = self._total + np.concatenate([[0], np.cumsum(events["first"])])
        self._total = int(totals[-1])
        read = window.readings(self._device)
        if not len(read):
            return None if self._lift is None else totals[1:] + self._lift
        told = np.searchsorted(events["time"], window.logged[read], "right")
        lifts = np.array(_agreed((window.rows["time"][read + 1] - totals[told]).tolist()))
        self._lift = int(lifts[-1])
        following = np.searchsorted(told, np.arange(len(events)), "right")
        levels: Ints = totals[1:] + lifts[np.minimum(following, len(read) - 1)]
        return levels


class _Joined:
    """A window's rows, and what comes to them.

    Args:
        window: of the rows.
        device: its code.
        labels, next_number: as for `DeviceJoin`.
    """

    def __init__(self, window: Window, device: int, labels: Labels, next_number: Callable[[], int]) -> None:
        self._window = window
        self._device = device
        self._labels = labels
        self._next_number = next_number
        self._keep = np.ones(len(window.rows), np.bool_)
        self._added: list[tuple[int, Row, Row]] = []
        self._read = set(window.readings(device).tolist())
        is_there = window.rows["code"] % LABEL_UNIT == device + window.kind
        self._storages = window.by_operator((window.kind == rows.ALLOCATION) & is_there)
        self._samples = np.flatnonzero((window.kind == rows.SAMPLE) & is_there).tolist()

    def rows(self) -> Raw:
        """All of them."""
        added = sorted(self._added, key=lambda one: one[0])
        made = np.array([row for _, *two in added for row in two], rows.ROW_DTYPE)
        times = np.repeat(np.array([time for time, _, _ in added], np.int64), 2)
        return self._window.with_rows(made, times, self._keep)

    def leave_out_samples(self, highest: int) -> None:
        """Leave out what the allocator's own peak has said of operators, up to what is known better now."""
        names, found = self._labels.names, self._window.rows
        for at in self._samples:
            if names[int(found["code"][at]) // LABEL_UNIT] and found["time"][at + 1] <= highest:
                self._keep[at : at + 2] = False

    def add(self, operator: int, moves: list[Move]) -> None:
        """What the allocator told in the operator with this row, or between two."""
        highest = max(moves, key=lambda move: move.level)
        shown: list[Move] = []
        if operator != _BETWEEN:
            pairs, left = _paired(moves)
            shown = [*self._workspaces(operator, pairs), *self._results(operator, left)]
        before, after = moves[0].level - moves[0].size, moves[-1].level
        if highest.level > max([before, after, *(move.level for move in shown)]):
            self._put(operator, highest, self._code(operator, rows.SAMPLE), 0, 0)

    def _workspaces(self, operator: int, pairs: list[tuple[Move, Move]]) -> Iterator[Move]:
        """Log what was given and taken back inside an operator."""
        code = self._code(operator, rows.ALLOCATION)
        for given, taken in pairs:
            number = self._next_number()
            self._put(operator, given, code, given.size, number)
            self._put(operator, taken, code + RELEASE_AFTER_ALLOCATION, given.size, number)
            yield from (given, taken)

    def _results(self, operator: int, left: list[Move]) -> Iterator[Move]:
        """Log what is left of an operator when it was given, and not when it came out."""
        storages = [(self._window.rows[at].tolist(), at) for at in self._storages.get(operator, ())]
        for (code, context, _, size, number), at in sorted(storages, key=lambda one: -one[0][3]):
            fitting = min((move for move in left if move.size >= size), default=None)
            if fitting is not None and size > 0:
                left.remove(fitting)
                self._keep[at] = False
                self._log(operator, fitting, (code, context, fitting.time, size, number))
                yield fitting

    def _put(self, operator: int, move: Move, code: int, size: int, number: int) -> None:
        found = self._window.rows
        at = operator if operator != _BETWEEN else int(np.searchsorted(self._window.logged, move.time)) - 1
        context = int(found["context"][max(at, 0)]) if len(found) else 0
        self._log(operator, move, (code, context, move.time, size, number))

    def _log(self, operator: int, move: Move, row: Row) -> None:
        """Log a row, and what was allocated after it; the other counters as after the operator."""
        active = reserved = UNKNOWN
        if operator in self._read:
            _, _, allocated, active_then, reserved_then = self._window.rows[operator + 1].tolist()
            active = move.level if active_then == allocated else UNKNOWN
            reserved = reserved_then if reserved_then >= move.level else UNKNOWN
        counters = (self._device + rows.COUNTERS, row[1], move.level, active, reserved)
        self._added.append((move.time, row, counters))

    def _code(self, operator: int, kind: int) -> int:
        """Of a row that is named after the operator, or after none."""
        if operator == _BETWEEN:
            return self._labels.code(kind, ALLOCATOR_PEAK) + self._device
        name = self._labels.names[int(self._window.rows["code"][operator]) // LABEL_UNIT]
        category = Category.UNATTRIBUTED if kind == rows.ALLOCATION else Category.UNKNOWN
        return self._labels.code(kind, self._labels.tables.strings.get(name), category) + self._device


def _paired(moves: list[Move]) -> tuple[list[tuple[Move, Move]], list[Move]]:
    """What was given and taken back, latest first of each size; and what was given and is left."""
    pairs: list[tuple[Move, Move]] = []
    given: dict[int, list[Move]] = {}
    for move in moves:
        if move.size > 0:
            given.setdefault(move.size, []).append(move)
        elif given.get(-move.size):
            pairs.append((given[-move.size].pop(), move))
    return pairs, [move for left in given.values() for move in left]


def _agreed(values: list[int]) -> list[int]:
    """Each value, unless most of its neighbours say otherwise: the median of the five."""
    if min(values) == max(values):
        return values
    near = (sorted(values[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS + 1]) for at in range(len(values)))
    return [some[(len(some) - 1) // 2] for some in near]
