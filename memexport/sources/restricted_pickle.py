"""Reads a pickle of dicts, tuples, strings and numbers without being able to do what a pickle asks for.

`loads` is for the small pickles of torch's `MemoryTracker`; its memory is bound by the size of the data.
Snapshots of torch's allocator are read by the same machine, see `_snapshot_machine`.
"""

from __future__ import annotations

import io
from typing import Any, Final

from memexport.sources import _pickle_machine as pickle_machine
from memexport.sources._pickle_machine import Machine, PickleRefusedError, Refusal
from memexport.sources._pickle_window import Window

MAX_DICTS: Final = 64

Scalar = int | float | str | None
Value = Scalar | tuple[Scalar, ...] | dict[int | str, "Value"]

_SCALARS: Final = (str, int, float, type(None))


def loads(data: bytes) -> dict[int | str, Value]:
    """The dict that the data describes; every `defaultdict` comes as a plain dict.

    Dicts have keys of type int and str only, and tuples hold no tuples or dicts. A dict may contain itself.

    Raises:
        PickleRefusedError: for anything else, whatever the data.
    """
    value: object = _ScalarMachine(Window(io.BytesIO(data), len(data), len(data))).run()
    if not isinstance(value, dict):
        raise PickleRefusedError(len(data) - 1, "does not end with one dict")
    return value


class _ScalarMachine(Machine):
    """Knows no lists, and no tuples with anything but scalars in them."""

    operations = pickle_machine.operations({})

    def __init__(self, window: Window) -> None:
        super().__init__(window)
        self._memo: dict[int, object] = {}
        self._dicts = 0

    def make_dict(self) -> None:
        self._dicts += 1
        if self._dicts > MAX_DICTS:
            raise Refusal("too many dicts")
        self.push({})

    def push_tuple(self, values: list[Any]) -> None:
        for value in values:
            if not isinstance(value, _SCALARS) and value is not pickle_machine.INT:
                raise Refusal(f"a tuple with a {pickle_machine.kind(value)} in it")
        super().push_tuple(values)

    def memoize(self) -> None:
        self.remember(len(self._memo))

    def remember(self, index: int) -> None:
        if index >= self.objects:
            raise Refusal(f"memo index {index} after {self.objects} values")
        self._memo[index] = self.stack[-1]

    def recall(self, index: int) -> object:
        if index not in self._memo:
            raise Refusal(f"memo index {index} was never set")
        return self._memo[index]


__all__ = ["MAX_DICTS", "PickleRefusedError", "Scalar", "Value", "loads"]
