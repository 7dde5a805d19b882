"""A whole recording in memory, as the tables that people analyse data with."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Final

from memexport.errors import UsageError
from memexport.exporters._arrow import ArrowTables, metadata, pieces, pyarrow
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_INTEGERS: Final = ("Int32", "Int64", "UInt64")
"""The types of the model's numbers, as pandas names those that may be missing."""


def arrow_table(
    info: RecordingInfo, tables: Tables, batches: Iterator[EventBatch], end: Callable[[], RecordingEnd]
) -> pa.Table:
    """Every event; `end` is asked when the last one is there.

    Raises:
        UsageError: pyarrow is not installed.
    """
    arrow = ArrowTables(info, tables)
    parts = [arrow.table(events) for events in pieces(batches)]
    whole = pyarrow().concat_tables([arrow.schema.empty_table(), *parts])
    # One dictionary for all parts: what takes a column as a whole needs it.
    return whole.unify_dictionaries().replace_schema_metadata(metadata(info, end()))


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """The table with categories for texts, and integers that may be missing: none becomes a float.

    Raises:
        UsageError: pandas is not installed.
    """
    pandas, arrow = _imported("pandas"), pyarrow()
    dtypes = {getattr(arrow, name.lower())(): getattr(pandas, f"{name}Dtype")() for name in _INTEGERS}
    frame: pd.DataFrame = table.to_pandas(types_mapper=dtypes.get)
    return frame


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """The table with categories for texts.

    Raises:
        UsageError: polars is not installed.
    """
    frame: pl.DataFrame = _imported("polars").from_arrow(table)
    return frame


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{name} is not installed", hint=f"pip install 'memexport[{name},parquet]'"
        ) from error
