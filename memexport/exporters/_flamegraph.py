"""What lived at one moment as stacks of frames: the path of the module, then the operator.

Where neither is known but the Python stack is, as in torch's own snapshots, it is that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.live import Allocations
from memexport.exporters._frames import Frame, python_frame
from memexport.exporters._titles import operator_label
from memexport.model import Category, Tables

UNATTRIBUTED: Final = "unattributed"

_PLACE: Final = ("module", "name", "stack", "category")


@dataclass(frozen=True)
class Stack:
    """Storages that were allocated from one place in the program.

    Attributes:
        frames: outermost first; the last one is the operator, or the category of what it does not know.
        category: in lower case.
    """

    frames: tuple[Frame, ...]
    category: str
    bytes: int
    count: int


def stacks(live: Allocations, allocated_bytes: int, tables: Tables) -> Iterator[Stack]:
    """One stack for each module, operator, Python stack and category, which add up to `allocated_bytes`.

    What no allocation explains is a stack of its own; there is none where the allocations come to more.
    """
    sizes = np.maximum(live.columns["size_bytes"], 0)
    places, index = _distinct(live)
    total = np.zeros(len(places), np.int64)
    np.add.at(total, index, sizes)
    count = np.bincount(index, minlength=len(places))
    for place, size, number in zip(places, total.tolist(), count.tolist(), strict=True):
        module, name, stack, category = place
        yield Stack(_frames(module, name, stack, category, tables), category_name(category), size, number)
    rest = allocated_bytes - int(sizes.sum())
    if rest > 0:
        yield Stack((Frame(f"({UNATTRIBUTED})"),), UNATTRIBUTED, rest, 1)


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
    known = category in set(Category) and category != Category.UNKNOWN
    return Category(category).name.lower().replace("_", " ") if known else UNATTRIBUTED


def _distinct(live: Allocations) -> tuple[list[list[int]], npt.NDArray[np.intp]]:
    """The different values of the columns `_PLACE`, and which of them each allocation has."""
    index = np.zeros(len(live), np.int64)
    for column in _PLACE:
        # Two numbers below 2^32 at a time: what was found so far, and one more column.
        _, index = np.unique(index << 32 | live.columns[column], return_inverse=True)
    _, first = np.unique(index, return_index=True)
    return np.stack([live.columns[column][first] for column in _PLACE], axis=1).tolist(), index


def _frames(module: int, name: int, stack: int, category: int, tables: Tables) -> tuple[Frame, ...]:
    """By string and stack ids; 0 for what is not known."""
    code = [python_frame(tables.strings[frame]) for frame in tables.stacks.frames(stack)]
    if code and not module and not name:
        return tuple(code)
    modules = map(Frame, module_frames(tables.strings.get(module)))
    leaf = operator_label(tables.strings[name]) if name else category_name(category)
    # The operator is where the user's code calls it, which the UI shows beside its name.
    return (*modules, Frame(leaf, *code[-1][1:]) if code else Frame(leaf))
