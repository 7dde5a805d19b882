"""The rows of a stretch of time, beside what an allocator recorded of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.tracker import rows
from memexport.tracker.chunk import Ints
from memexport.tracker.rows import DEVICE_UNIT, LABEL_UNIT

Raw = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_KINDS: Final = np.arange(DEVICE_UNIT)
_ENDS_LATER: Final = np.isin(_KINDS, (rows.OPERATOR, rows.IGNORED, rows.SPAN))
_TIMELESS: Final = np.isin(_KINDS, (*rows.BELONG_TO_THE_ROW_BEFORE, rows.DETAILS))


@dataclass(frozen=True)
class Window:
    """The rows of a window, without the record's.

    Attributes:
        rows: in the order in which they were logged; may be written to.
        kind: of each.
        logged: when, by `time.perf_counter_ns`; never less than in the row before.
        is_storage: those about a storage on the CPU that takes memory.
    """

    rows: Raw
    kind: npt.NDArray[np.uint8]
    logged: Ints
    is_storage: Mask

    @staticmethod
    def of(raw: Raw) -> Window:
        """Take rows apart."""
        kind = kind_of(raw)
        on_cpu = raw["code"] % LABEL_UNIT < DEVICE_UNIT
        moves = ((kind == rows.ALLOCATION) | (kind == rows.RELEASE)) & on_cpu & (raw["first"] > 0)
        when = np.where(_ENDS_LATER[kind], raw["first"], raw["time"])
        when[_TIMELESS[kind]] = 0
        return Window(raw, kind, np.maximum.accumulate(when), moves)

    def operator_at(self, times: Ints) -> Ints:
        """The row of the operator that ran then; −1 for none."""
        operators = np.flatnonzero((self.kind == rows.OPERATOR) | (self.kind == rows.IGNORED))
        if not len(operators):
            return np.full(len(times), -1)
        operators = operators[np.argsort(self.rows["time"][operators], kind="stable")]
        began = self.rows["time"][operators]
        latest = operators[np.maximum(np.searchsorted(began, times, "right") - 1, 0)]
        runs = (times >= began[0]) & (times <= self.rows["first"][latest])
        return np.where(runs, latest, -1)

    def change_nets(self, made: Raw, dropped: Mask) -> None:
        """Let the net change of an operator on the CPU be that of the rows made instead of those dropped."""
        for moves, sign in ((made, 1), (self.rows[dropped], -1)):
            operator = self.operator_at(moves["time"])
            sizes = np.where(kind_of(moves) == rows.ALLOCATION, sign, -sign) * moves["first"]
            np.add.at(self.rows["second"], operator[operator >= 0], sizes[operator >= 0])

    def with_rows(self, made: Raw, times: Ints, keep: Mask) -> Raw:
        """The kept rows, and each made one before the first that was logged at its time or later.

        Those that belong together have the same time, and ascending ones follow each other.
        """
        joined: Raw = np.insert(self.rows[keep], np.searchsorted(self.logged[keep], times), made)
        return joined

    def readings(self, device: int) -> Ints:
        """The rows of operators after which the allocator of the device with this code was asked."""
        code = self.rows["code"] % LABEL_UNIT
        # Without an end: a reading is never cut from its row, so it is not the first of a window.
        is_read = np.roll(code, -1) == device + rows.COUNTERS
        return np.flatnonzero(is_read & (code == device + rows.OPERATOR))

    def by_operator(self, which: Mask) -> dict[int, list[int]]:
        """These rows, by that of the operator in which they lie."""
        found: dict[int, list[int]] = {}
        at = np.flatnonzero(which)
        for row, operator in zip(at.tolist(), self.operator_at(self.rows["time"][at]).tolist(), strict=True):
            found.setdefault(operator, []).append(row)
        return found


def kind_of(raw: Raw) -> npt.NDArray[np.uint8]:
    """Of each row."""
    kind: npt.NDArray[np.uint8] = (raw["code"] & (DEVICE_UNIT - 1)).astype(np.uint8)
    return kind
