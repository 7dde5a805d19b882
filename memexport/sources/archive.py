"""The memexport archive: every intact record of it, and a warning for everything else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from memexport.archive.codec import (
    SCHEMA_MAJOR,
    BatchDecoder,
    CodecError,
    decode_footer,
    decode_header,
    parse_record,
    unknown_columns,
)
from memexport.archive.findings import Findings
from memexport.archive.framing import Frame, RecordReader, begins_archive
from memexport.archive.tables import ID_COLUMNS, TableReader
from memexport.archive.v1 import archive_pb2 as pb
from memexport.errors import InputError
from memexport.model import (
    NULLS,
    Category,
    Column,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

# What a newer minor version may have added to: values above these are not known here.
_GREATEST_KNOWN: Final = {"phase": max(Phase), "category": max(Category)}


class ArchiveSource:
    """Reads a `.memx` file, also one that was cut or damaged: intact records are read, the rest is counted.

    Several passes over it share its tables, and hold one batch at a time.

    Raises:
        InputError: it cannot be opened, its header is damaged, or a newer memexport wrote it.
    """

    info: RecordingInfo
    tables: Tables

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            # Unbuffered: a pass reads whole records, and several passes may share the position.
            self._stream: BinaryIO = self._path.open("rb", buffering=0)
        except OSError as error:
            raise InputError(self._path, None, error.strerror or str(error)) from error
        self._end = RecordingEnd()
        devices: list[Device] = []
        self._table_reader = TableReader(devices)
        self.tables = self._table_reader.tables
        try:
            self.info = self._open(devices)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def sniff(head: bytes) -> bool:
        """Whether a file that begins with these bytes is an archive, be it a damaged one."""
        return begins_archive(head)

    def batches(self) -> Iterator[EventBatch]:
        """Every event that can be read, in order; see `Source.batches`.

        Raises:
            InputError: the file became shorter, cannot be read, or an intact record contradicts the schema.
        """
        self._pass = self._new_pass()
        return self._batches(self._pass)

    def end(self) -> RecordingEnd:
        """What the recorder said at its end, then what this reader could not read."""
        return self._end

    @property
    def fraction_read(self) -> float | None:
        """How much of the file the running pass has read."""
        reader = self._pass.reader
        return min(reader.offset / reader.size, 1.0) if reader.size else 1.0

    def close(self) -> None:
        """Give the file back. Calling it twice does nothing."""
        self._stream.close()

    def _open(self, devices: list[Device]) -> RecordingInfo:
        self._pass = self._new_pass()
        # As far as the first batch: that holds the header, and the devices that were known from the start.
        next(self._pass.batches(), None)
        header = self._pass.header
        if header is None:
            raise InputError(self._path, None, "the archive's header is missing or damaged")
        return decode_header(header, devices)

    def _new_pass(self) -> _Pass:
        try:
            size = os.fstat(self._stream.fileno()).st_size
        except (OSError, ValueError) as error:  # ValueError: it was closed
            raise InputError(self._path, None, str(error)) from error
        return _Pass(RecordReader(self._path, self._stream, size), self._table_reader)

    def _batches(self, reading: _Pass) -> Iterator[EventBatch]:
        yield from reading.batches()
        self._end = reading.end()


class _Pass:
    """One reading of the file, from its start."""

    def __init__(self, reader: RecordReader, tables: TableReader) -> None:
        self.reader = reader
        self.header: pb.Header | None = None
        self._tables = tables
        self._decoder = BatchDecoder()
        self._findings = Findings()
        self._footer: pb.Footer | None = None
        self._next_event = 0
        self._dropped_events = 0

    def batches(self) -> Iterator[EventBatch]:
        for frame in self.reader:
            try:
                batch = self._take(frame)
            except CodecError as error:
                raise InputError(self.reader.path, f"byte {frame.offset}", str(error)) from error
            if batch is not None and len(batch):
                yield batch
            if self._findings.rest_begins is not None or self._footer is not None:
                break
        if self._footer is not None and self.reader.offset < self.reader.size:
            self._findings.rest_begins = self.reader.offset
        self.reader.offset = self.reader.size

    def end(self) -> RecordingEnd:
        """What is known once `batches` is exhausted."""
        end = self._open_end() if self._footer is None else decode_footer(self._footer)
        found = self._findings.sentences(self.reader, self._tables.lost_entries)
        return RecordingEnd((*end.warnings, *found), end.dropped_events, end.alloc_retries, end.ooms)

    def _open_end(self) -> RecordingEnd:
        """What is known of a recording without an end."""
        return RecordingEnd(dropped_events=self._dropped_events)

    def _take(self, frame: Frame) -> EventBatch | None:
        """Take one record: its events, if that is what it holds."""
        record = parse_record(frame.body)
        body = record.WhichOneof("body")
        if self.header is None and body != "header":
            raise CodecError("the archive's header is missing or damaged")
        match body:
            case "header":
                self._take_header(record.header, frame.offset)
            case "tables":
                self._tables.add(record.tables, self.reader.lost_bytes)
            case "batch":
                return self._take_batch(record.batch)
            case "index":
                pass
            case "footer":
                self._take_footer(record.footer)
            case None:
                self._findings.unknown_records += 1
        return None

    def _take_header(self, header: pb.Header, offset: int) -> None:
        if self.header is not None:
            # Two archives joined; a message may be, a recording not.
            self._findings.rest_begins = offset
            return
        if header.schema_major == 0:
            raise CodecError("the header names no version")
        if header.schema_major > SCHEMA_MAJOR:
            raise InputError(
                self.reader.path,
                None,
                f"written by schema {header.schema_major}.{header.schema_minor}; "
                f"this memexport reads up to {SCHEMA_MAJOR}.x",
                hint="upgrade memexport",
            )
        self.header = header
        self._findings.written_by = (header.schema_major, header.schema_minor)

    def _take_batch(self, message: pb.EventBatch) -> EventBatch:
        if message.dropped_events:
            self._dropped_events += message.dropped_events
            self._next_event = max(self._next_event, message.first_event)
        self._skip_to(message.first_event)
        batch = self._decoder.decode(message)
        self._next_event += len(batch)
        self._findings.unknown_columns.update(unknown_columns(message))
        return self._known(batch)

    def _take_footer(self, footer: pb.Footer) -> None:
        self._skip_to(footer.event_count)
        self._footer = footer
        self._findings.complete = True

    def _skip_to(self, event: int) -> None:
        if event < self._next_event:
            raise CodecError(f"events from number {event} after {self._next_event} were read")
        self._findings.lost_events += event - self._next_event
        self._next_event = event

    def _known(self, batch: EventBatch) -> EventBatch:
        """The batch without what newer versions may have added, and without ids that no table has."""
        blanked = {**self._without_unknown_values(batch), **self._without_bad_ids(batch)}
        if blanked:
            batch = EventBatch(**{**batch.columns(), **blanked})
        if int(batch.kind.max()) > max(EventKind):
            known = batch.kind <= max(EventKind)
            self._findings.unknown_events += len(batch) - int(np.count_nonzero(known))
            batch = batch.select(known)
        return batch

    def _without_unknown_values(self, batch: EventBatch) -> dict[str, Column]:
        blanked = {}
        for name, greatest in _GREATEST_KNOWN.items():
            column = getattr(batch, name)
            if int(column.max()) > greatest:
                blanked[name] = np.where(column > greatest, column.dtype.type(NULLS[name]), column)
                self._findings.unknown_values += int(np.count_nonzero(column > greatest))
        return blanked

    def _without_bad_ids(self, batch: EventBatch) -> dict[str, Column]:
        """The id columns that had ids beyond their table, even when that is filled up to what can be lost."""
        blanked = {}
        for name, table in ID_COLUMNS.items():
            column, null = getattr(batch, name), NULLS[name]
            # The table's record may be lost, but not more of it than the file has lost bytes.
            with contextlib.suppress(CodecError):
                self._tables.pad(table, int(column.max()) + 1, self.reader.lost_bytes)
            length = self._tables.length(table)
            if int(column.max()) >= length or int(column.min()) < null:
                bad = (column >= length) | (column < null)
                blanked[name] = np.where(bad, column.dtype.type(null), column)
                self._findings.bad_ids += int(np.count_nonzero(bad))
        return blanked
