"""Columns that grow while a snapshot is read, without ever being copied."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from memexport.model import Column
from memexport.sources._snapshot import Columns

_TYPECODES: Final = {"u1": "B", "u4": "I", "i4": "i", "u8": "Q", "i8": "q"}


class GrowingColumn:
    """A column at whose end values are put. It takes no memory while all of them are the same."""

    __slots__ = ("_constant", "_count", "_dtype", "_values")

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._constant = 0
        self._count = 0
        self._values: array[int] | None = None

    def append(self, value: int) -> None:
        """Put a value at the end; it fits the type."""
        if self._values is not None:
            self._values.append(value)
        elif value == self._constant or not self._count:
            self._constant = value
            self._count += 1
        else:
            self._materialized().append(value)

    def extend(self, values: Column) -> None:
        """Put values of the column's type at the end, at least one."""
        if self._values is None:
            first = int(values[0])
            if (first == self._constant or not self._count) and (values == values[0]).all():
                self._constant = first
                self._count += len(values)
                return
        self._materialized().frombytes(np.ascontiguousarray(values, self._dtype).view(np.uint8).data)

    def _materialized(self) -> array[int]:
        if self._values is None:
            self._values = array(_TYPECODES[self._dtype.str[1:]], [self._constant]) * self._count
        return self._values

    def __getitem__(self, row: int) -> int:
        return self._constant if self._values is None else self._values[row]

    def __setitem__(self, row: int, value: int) -> None:
        self._materialized()[row] = value

    def column(self, begin: int, end: int) -> Column:
        """The rows from `begin` to `end`. Nothing can be put at the end any more."""
        if self._values is None:
            return np.broadcast_to(np.array(self._constant, self._dtype), (end - begin,))
        view = np.frombuffer(self._values, self._dtype)[begin:end]
        view.flags.writeable = False
        return view


class Rows:
    """A table of such columns.

    Args:
        dtypes: the columns' types, by name.

    Attributes:
        count: how many rows there are.
    """

    def __init__(self, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self.columns = {name: GrowingColumn(dtype) for name, dtype in dtypes.items()}
        self._in_order = tuple(self.columns.values())
        self.count = 0

    def append(self, *values: int) -> None:
        """Put a row at the end: a value for each column, in order."""
        for column, value in zip(self._in_order, values, strict=True):
            column.append(value)
        self.count += 1

    def extend(self, count: int, values: Mapping[str, Column]) -> None:
        """Put rows at the end: values for every column."""
        for name, column in self.columns.items():
            column.extend(values[name])
        self.count += count

    def row(self, number: int) -> tuple[int, ...]:
        """The values of a row, in order."""
        return tuple(column[number] for column in self._in_order)

    def slice(self, begin: int, end: int) -> Columns:
        """The rows from `begin` to `end`, read-only. No row can be put at the end any more."""
        return {name: column.column(begin, end) for name, column in self.columns.items()}
