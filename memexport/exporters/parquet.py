"""Writes the events as a Parquet file (`.parquet`), for DuckDB, Polars, Spark, Ray and others."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Final

from memexport.errors import UsageError
from memexport.exporters._arrow import ROWS, ArrowTables, metadata, pyarrow
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from _typeshed import ReadableBuffer

_NO_RANK: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, and with it everything that reads its folders, takes for a null."""


class ParquetExporter:
    """A row for each event, null for what is not known, in row groups of some hundred thousand.

    What is true for the whole recording is JSON in the file's metadata, under "memexport.info" and
    "memexport.end". Memory does not grow with the recording. The file cannot be read before it is complete.

    Args:
        destination: where it goes.
        partitioned: leave the column `rank` out: the file's folder says it (`partition`).

    Raises:
        UsageError: pyarrow is not installed.
    """

    def __init__(self, destination: Destination, *, partitioned: bool = False) -> None:
        pyarrow()
        self._destination = destination
        self._partitioned = partitioned
        self._waiting: list[EventBatch] = []
        self._sink = _Sink(destination)
        self._writer: pq.ParquetWriter | None = None

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file."""
        from pyarrow.parquet import ParquetWriter

        self._info = info
        self._tables = ArrowTables(info, tables, without=("rank",) if self._partitioned else ())
        self._destination.open()
        self._writer = ParquetWriter(self._sink, self._tables.schema, compression="zstd")

    def write(self, batch: EventBatch) -> None:
        """Take the events; they are written when there are enough for a row group."""
        if self._partitioned:
            self._refuse_other_ranks(batch)
        self._waiting.append(batch)
        if sum(map(len, self._waiting)) >= ROWS:
            self._write_waiting()

    def end(self, end: RecordingEnd) -> None:
        """Write what is left and what is true for the whole, and put the file in its place."""
        self._write_waiting()
        if self._writer is not None:
            self._writer.add_key_value_metadata(metadata(self._info, end))
            self._writer.close()
        self._destination.commit()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._sink.is_discarded = True
        if self._writer is not None:
            # Else it would do so when it is collected.
            with contextlib.suppress(Exception):
                self._writer.close()
        self._destination.discard()

    def _write_waiting(self) -> None:
        events = EventBatch.concat(self._waiting)
        self._waiting.clear()
        if len(events) and self._writer is not None:
            self._writer.write_table(self._tables.table(events), row_group_size=ROWS)

    def _refuse_other_ranks(self, batch: EventBatch) -> None:
        own = -1 if self._info.rank is None else self._info.rank
        others = batch.rank[(batch.rank != own) & (batch.rank != -1)]
        if len(others):
            raise UsageError(
                f"the recording has events of rank {others[0]}, and belongs to {partition(self._info)}",
                hint="as one file, without folders of ranks, it keeps the rank of each event",
            )


def partition(info: RecordingInfo) -> str:
    """The folder in a dataset that is partitioned by rank: "rank=3", which readers take for a column."""
    return f"rank={_NO_RANK if info.rank is None else info.rank}"


class _Sink(io.RawIOBase):
    """What Arrow writes to: the destination."""

    def __init__(self, destination: Destination) -> None:
        super().__init__()
        self._destination = destination
        self.is_discarded = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._destination.written_bytes

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data)
        if not self.is_discarded:
            self._destination.write(view)
        return view.nbytes
