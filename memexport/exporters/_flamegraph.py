"""What lived at one moment as stacks of frames: the path of the module, then the operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.live import Allocations
from memexport.exporters._titles import operator_label
from memexport.model import Category, StringTable

UNATTRIBUTED: Final = "unattributed"


@dataclass(frozen=True)
class Stack:
    """Storages that were allocated from one place in the program.

    Attributes:
        frames: outermost first; the last one is the operator, or the category of what it does not know.
        category: in lower case.
    """

    frames: tuple[str, ...]
    category: str
    bytes: int
    count: int


def stacks(live: Allocations, allocated_bytes: int, strings: StringTable) -> Iterator[Stack]:
    """One stack for each module, operator and category, which add up to `allocated_bytes`.

    What no allocation explains is a stack of its own; there is none where the allocations come to more.
    """
    sizes = np.maximum(live.columns["size_bytes"], 0)
    place = live.columns["module"].astype(np.uint64) << 32 | live.columns["name"]
    keys, index = np.unique(place, return_inverse=True)
    codes, index = np.unique(index << 8 | live.columns["category"], return_inverse=True)
    total = np.zeros(len(codes), np.int64)
    np.add.at(total, index, sizes)
    count = np.bincount(index, minlength=len(codes))
    for code, size, number in zip(codes.tolist(), total.tolist(), count.tolist(), strict=True):
        module, name = divmod(int(keys[code >> 8]), 1 << 32)
        category = category_name(code & 0xFF)
        leaf = operator_label(strings[name]) if name else category
        yield Stack((*module_frames(strings.get(module)), leaf), category, size, number)
    rest = allocated_bytes - int(sizes.sum())
    if rest > 0:
        yield Stack((f"({UNATTRIBUTED})",), UNATTRIBUTED, rest, 1)


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
