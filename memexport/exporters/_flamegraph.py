"""What lived at one moment as stacks of frames: the category, the path of the module, the operator.

Where no module is known but the Python stack is, as in torch's own snapshots, that stands in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.live import Allocations
from memexport.analysis.text import operator_label
from memexport.exporters._frames import Frame, code_frame
from memexport.model import Category, Tables

UNATTRIBUTED: Final = "unattributed"

_CATEGORY_NAMES: Final = {
    int(category): category.name.lower().replace("_", " ")
    for category in Category
    if category != Category.UNKNOWN
}
_PLACE: Final = ("module", "name", "stack", "category")


@dataclass(frozen=True)
class Stack:
    """Storages that were allocated from one place in the program.

    Attributes:
        frames: outermost first; never empty.
        category: in lower case.
    """

    frames: tuple[Frame, ...]
    category: str
    bytes: int
    count: int


def stacks(live: Allocations, allocated_bytes: int, tables: Tables) -> Iterator[Stack]:
    """One stack for each category, module, operator and Python stack, which add up to `allocated_bytes`.

    What no allocation explains is a stack of its own; there is none where the allocations come to more.
    """
    code = CodeFrames(tables, code_frame)
    attributed = 0
    for (module, name, stack, category), size, number in sums(live, _PLACE):
        frames = _frames(module, name, code.frames(stack), category, tables)
        yield Stack(frames, category_name(category), size, number)
        attributed += size
    if attributed < allocated_bytes:
        rest = allocated_bytes - attributed
        yield Stack((Frame(f"({UNATTRIBUTED})"),), UNATTRIBUTED, rest, 1)


def sums(live: Allocations, columns: Sequence[str]) -> Iterator[tuple[list[int], int, int]]:
    """For the different values of these columns of ids: they, and the bytes and number of allocations."""
    places, index = _distinct(live, columns)
    total = np.zeros(len(places), np.int64)
    np.add.at(total, index, np.maximum(live.columns["size_bytes"], 0))
    count = np.bincount(index, minlength=len(places))
    yield from zip(places, total.tolist(), count.tolist(), strict=True)


def module_frames(path: str | None) -> list[str]:
    """The path's parts; a number stays with what it counts: `layers.1`, `attention`."""
    frames: list[str] = []
    for part in path.split(".") if path else ():
        if part.isdigit() and frames:
            frames[-1] += f".{part}"
        else:
            frames.append(part)
    return frames


def category_name(category: int) -> str:
    """In lower case with blanks, as people read it."""
    return _CATEGORY_NAMES.get(category, UNATTRIBUTED)


def _distinct(live: Allocations, columns: Sequence[str]) -> tuple[list[list[int]], npt.NDArray[np.intp]]:
    """The different values of the columns, and which of them each allocation has."""
    index = np.zeros(len(live), np.int64)
    for column in columns:
        # Two numbers below 2^32 at a time: what was found so far, and one more column.
        _, index = np.unique(index << 32 | live.columns[column], return_inverse=True)
    _, first = np.unique(index, return_index=True)
    return np.stack([live.columns[column][first] for column in columns], axis=1).tolist(), index


class CodeFrames:
    """The frames of Python stacks; few stacks make most allocations.

    Args:
        tables: the recording's.
        make: gives the frame of a text ("train.py:41:step").
    """

    def __init__(self, tables: Tables, make: Callable[[str], Frame]) -> None:
        self._tables = tables
        self._make = make
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self._frames: dict[int, Frame] = {}

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Of the stack with this id, outermost first."""
        found = self._stacks.get(stack)
        if found is None:
            found = self._stacks[stack] = tuple(map(self._frame, self._tables.stacks.frames(stack)))
        return found

    def _frame(self, string: int) -> Frame:
        found = self._frames.get(string)
        if found is None:
            found = self._frames[string] = self._make(self._tables.strings[string])
        return found


def _frames(
    module: int, name: int, code: tuple[Frame, ...], category: int, tables: Tables
) -> tuple[Frame, ...]:
    """By string ids; 0 for what is not known."""
    frames = [Frame(_category_frame(category))] if category != Category.UNKNOWN else []
    frames += map(Frame, module_frames(tables.strings.get(module)))
    if not module:
        frames += code
    if name:
        # The operator is where the user's code calls it, which the UI shows beside its name.
        frames.append(Frame(operator_label(tables.strings[name]), *code[-1][1:] if code else ()))
    return tuple(frames) or (Frame(_category_frame(category)),)


def _category_frame(category: int) -> str:
    name = category_name(category)
    return f"({name})" if name == UNATTRIBUTED else name
