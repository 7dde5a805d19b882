"""Whose bytes are live: by category and by module, with what nothing explains always shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.live import Allocations
from memexport.model import Category, Column, StringTable

_UNATTRIBUTED: Final = Category.UNATTRIBUTED.name.lower()
_EXPLAINING: Final = frozenset(Category) - {Category.UNKNOWN, Category.UNATTRIBUTED}


@dataclass(frozen=True)
class ModuleBytes:
    """What a module holds; module None: nothing says whose bytes these are."""

    module: str | None
    bytes: int


@dataclass(frozen=True)
class OperatorBytes:
    """What the allocations of an operator hold; operator None: nothing says which made them."""

    operator: str | None
    bytes: int


def by_category(live: Allocations, counter: int | None) -> dict[str, int]:
    """Bytes by category in lower case, largest first, without those that are 0.

    Args:
        live: the allocations, with their sizes and categories.
        counter: what the device says is allocated; what it has beyond the allocations is "unattributed".
            None where it does not say.
    """
    named = {_UNATTRIBUTED: _unexplained(live, counter)}
    for key, size in _sums(live.columns["category"], _sizes(live)).items():
        # A category that only a later version of the model has explains nothing here.
        name = Category(key).name.lower() if key in _EXPLAINING else _UNATTRIBUTED
        named[name] = named.get(name, 0) + size
    return {name: size for name, size in sorted(named.items(), key=lambda pair: (-pair[1], pair[0])) if size}


def by_module(live: Allocations, counter: int | None, strings: StringTable) -> tuple[ModuleBytes, ...]:
    """Bytes by the module that allocated them, like `by_category`; all modules, largest first."""
    return tuple(ModuleBytes(*row) for row in _by_string("module", live, counter, strings))


def by_operator(live: Allocations, counter: int | None, strings: StringTable) -> tuple[OperatorBytes, ...]:
    """Bytes by the operator that allocated them, like `by_category`; all operators, largest first."""
    return tuple(OperatorBytes(*row) for row in _by_string("name", live, counter, strings))


def _by_string(
    column: str, live: Allocations, counter: int | None, strings: StringTable
) -> list[tuple[str | None, int]]:
    sums = _sums(live.columns[column], _sizes(live))
    sums[0] = sums.get(0, 0) + _unexplained(live, counter)
    rows = [(strings.get(key), size) for key, size in sums.items() if size]
    return sorted(rows, key=lambda row: (-row[1], row[0] or ""))


def _sums(keys: Column, sizes: Column) -> dict[int, int]:
    distinct, index = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, index, sizes)
    return dict(zip(distinct.tolist(), sums.tolist(), strict=True))


def _sizes(live: Allocations) -> Column:
    """Bytes; what is of unknown size counts as nothing, and so as unattributed."""
    return np.maximum(live.columns["size_bytes"], 0)


def _unexplained(live: Allocations, counter: int | None) -> int:
    return 0 if counter is None else max(0, counter - int(_sizes(live).sum()))
