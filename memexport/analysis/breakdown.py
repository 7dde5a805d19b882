"""Whose bytes are live: by category, module and operator, with what nothing explains always shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.live import Allocations
from memexport.model import Category, Column, StringTable

_UNATTRIBUTED: Final = Category.UNATTRIBUTED.name.lower()
_EXPLAINING: Final = frozenset(Category) - {Category.UNKNOWN, Category.UNATTRIBUTED}

_ID_BITS: Final = 28
"""A table of 2**28 strings would not fit in memory, so no id is cut."""


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


@dataclass(frozen=True)
class LiveBytes:
    """What the allocations of one operator, called by one module, hold of one category.

    None where it is not known. The category is in lower case, "unattributed" where there is none.
    """

    category: str
    module: str | None
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
        name = _category_name(key)
        named[name] = named.get(name, 0) + size
    return {name: size for name, size in sorted(named.items(), key=lambda pair: (-pair[1], pair[0])) if size}


def by_module(live: Allocations, counter: int | None, strings: StringTable) -> tuple[ModuleBytes, ...]:
    """Bytes by the module that allocated them, like `by_category`; all modules, largest first."""
    return tuple(ModuleBytes(*row) for row in _by_string("module", live, counter, strings))


def by_operator(live: Allocations, counter: int | None, strings: StringTable) -> tuple[OperatorBytes, ...]:
    """Bytes by the operator that allocated them, like `by_category`; all operators, largest first."""
    return tuple(OperatorBytes(*row) for row in _by_string("name", live, counter, strings))


def by_all(live: Allocations, strings: StringTable) -> tuple[LiveBytes, ...]:
    """Bytes of the allocations alone by category, module and operator, largest first, without those of 0."""
    columns = live.columns
    key = columns["category"].astype(np.uint64) << np.uint64(2 * _ID_BITS)
    key |= columns["module"].astype(np.uint64) << np.uint64(_ID_BITS)
    key |= columns["name"]
    mask = (1 << _ID_BITS) - 1
    rows: dict[tuple[str, str | None, str | None], int] = {}
    for code, size in _sums(key, _sizes(live)).items():
        category = _category_name(code >> (2 * _ID_BITS))
        names = (category, strings.get((code >> _ID_BITS) & mask), strings.get(code & mask))
        # Two numbers may stand for one name: of categories that explain nothing, of strings in a file.
        rows[names] = rows.get(names, 0) + size
    ordered = sorted(rows.items(), key=lambda row: (-row[1], *(name or "" for name in row[0])))
    return tuple(LiveBytes(*names, size) for names, size in ordered if size)


def _category_name(category: int) -> str:
    """A category that only a later version of the model has explains nothing here."""
    return Category(category).name.lower() if category in _EXPLAINING else _UNATTRIBUTED


def module_sums(live: Allocations, counter: int | None) -> dict[int, int]:
    """Bytes by the string id of the module that allocated them, like `by_category`; 0: of none."""
    return _with_unexplained("module", live, counter)


def _with_unexplained(column: str, live: Allocations, counter: int | None) -> dict[int, int]:
    sums = _sums(live.columns[column], _sizes(live))
    sums[0] = sums.get(0, 0) + _unexplained(live, counter)
    return sums


def _by_string(
    column: str, live: Allocations, counter: int | None, strings: StringTable
) -> list[tuple[str | None, int]]:
    sums = _with_unexplained(column, live, counter)
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
