"""Which operator, module call and phase each event of a trace happened in, from its thread and its times."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from memexport.model import Phase, StringTable
from memexport.sources._kineto_events import Rows
from memexport.sources._kineto_kinds import Kind, Role

NOBODY: Final = -1

MAX_DEPTH: Final = 2**16
"""Python itself allows a thousand calls inside each other."""

_MAX_PATH: Final = 1_000


class TooDeepError(Exception):
    """More calls are open at once than any program has."""


class _Open(NamedTuple):
    """A call that has not ended yet, and what is so inside of it.

    Attributes:
        end: when it ends.
        owner: the number of the row of the operator that memory is counted for.
        operator: the string id of its name.
        module: the string id of the module's path.
        phase: a `Phase`.
    """

    end: int
    owner: int
    operator: int
    module: int
    phase: int


_OUTSIDE: Final = _Open(2**63 - 1, NOBODY, 0, 0, Phase.UNKNOWN)


class Places(NamedTuple):
    """Where each row happened; of an operator or a module's call, what is so inside of it.

    Attributes:
        owner: the number of the row, counted from the first, of the operator that memory is counted for:
            the innermost one, but what only gets memory, as `aten::empty` does, is a part of its caller.
        operator: the string id of that operator's name.
    """

    owner: npt.NDArray[np.int64]
    operator: npt.NDArray[np.uint32]
    module: npt.NDArray[np.uint32]
    phase: npt.NDArray[np.uint8]


class Nesting:
    """Follows the calls of every thread. Rows come as `SortedRows` gives them back."""

    def __init__(self, kinds: list[Kind], strings: StringTable) -> None:
        self._kinds = kinds
        self._strings = strings
        self._stacks: dict[int, list[_Open]] = {}
        self._rows = 0

    def place(self, rows: Rows) -> Places:
        """Where these rows happened.

        This is the one loop over rows in Python: what is open depends on everything before.

        Raises:
            TooDeepError: more calls are open at once than any program has.
        """
        found: list[_Open] = []
        columns = (rows["end"].tolist(), rows["kind"].tolist(), rows["thread"].tolist())
        for number, (end, kind, thread) in enumerate(zip(*columns, strict=True), self._rows):
            stack = self._stacks.get(thread)
            if stack is None:
                stack = self._stacks[thread] = [_OUTSIDE]
            while stack[-1].end < end:
                stack.pop()
            inside = stack[-1]
            if kind > Role.OUT_OF_MEMORY:
                inside = self._entered(inside, end, number, self._kinds[kind])
                stack.append(inside)
                if len(stack) > MAX_DEPTH:
                    raise TooDeepError
            found.append(inside)
        self._rows += len(rows)
        return _places(found)

    def _entered(self, around: _Open, end: int, number: int, kind: Kind) -> _Open:
        phase = kind.phase or around.phase
        if kind.role == Role.OPERATOR:
            if kind.for_caller and around.owner != NOBODY:
                return _Open(end, *around[1:])
            return _Open(end, number, kind.name, around.module, phase)
        if kind.role == Role.MODULE:
            inside_backward = phase in (Phase.BACKWARD, Phase.RECOMPUTE)
            phase = Phase.RECOMPUTE if inside_backward else Phase.FORWARD
            return _Open(end, around.owner, around.operator, self._path(around.module, kind.part), phase)
        return _Open(end, around.owner, around.operator, around.module, phase)

    def _path(self, around: int, part: str) -> int:
        path = self._strings.get(around)
        if path is None:
            return self._strings.intern(part)
        return self._strings.intern(f"{path}.{part}") if len(path) < _MAX_PATH else around


def _places(found: list[_Open]) -> Places:
    def column(values: list[Any], dtype: type) -> npt.NDArray[Any]:
        return np.array(values, dtype)

    return Places(
        column([place.owner for place in found], np.int64),
        column([place.operator for place in found], np.uint32),
        column([place.module for place in found], np.uint32),
        column([place.phase for place in found], np.uint8),
    )
