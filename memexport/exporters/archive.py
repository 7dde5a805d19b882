"""The memexport archive: everything that a recording holds, in a file that survives a crash."""

from __future__ import annotations

from typing import Final

import numpy as np

from memexport.archive.codec import BatchEncoder, encode_footer, encode_header, split
from memexport.archive.framing import pack_record
from memexport.archive.tables import TableWriter
from memexport.archive.v1 import archive_pb2 as pb
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

# Damage costs a batch, and what is read is held whole: more events a batch make files no smaller.
_BATCH_EVENTS: Final = 16_384


class ArchiveExporter:
    """Writes a `.memx` file, batch by batch: a batch is safe once `write` returns.

    Large batches are split; small ones are written as they come, and cost about 200 bytes each beyond
    their events.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._encoder = BatchEncoder()
        self._index = pb.Index()
        self._events = 0
        self._tables: TableWriter

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file and write what is true for the whole recording."""
        self._tables = TableWriter(tables, info.devices)
        self._destination.open()
        self._destination.write(packed(pb.Record(header=encode_header(info))))

    def write(self, batch: EventBatch) -> None:
        """Append the events, after what the tables gained."""
        for part in split(batch, _BATCH_EVENTS):
            growth = self._growth()
            self._index.batches.append(self._entry(part, len(growth)))
            record = pb.Record(batch=self._encoder.encode(part, self._events))
            self._destination.write(growth + packed(record))
            self._events += len(part)

    def end(self, end: RecordingEnd) -> None:
        """Append the rest of the tables, the index and the totals, and put the file in its place."""
        self._destination.write(self._growth())
        footer = encode_footer(end)
        footer.event_count = self._events
        footer.string_count = self._tables.string_count
        footer.stack_count = self._tables.stack_count
        footer.device_count = self._tables.device_count
        footer.index_offset = self._destination.written_bytes
        self._destination.write(packed(pb.Record(index=self._index)) + packed(pb.Record(footer=footer)))
        self._destination.commit()

    def abort(self) -> None:
        """Leave what was there before; a live recording keeps every batch written so far."""
        self._destination.discard()

    def _growth(self) -> bytes:
        return b"".join(packed(pb.Record(tables=growth)) for growth in self._tables.growth())

    def _entry(self, batch: EventBatch, bytes_before: int) -> pb.IndexEntry:
        ends = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
        return pb.IndexEntry(
            offset=self._destination.written_bytes + bytes_before,
            event_count=len(batch),
            first_time_unix_ns=int(batch.time_unix_ns.min()),
            last_time_unix_ns=int(ends.max()),
        )


def packed(record: pb.Record) -> bytes:
    """The record as it stands in a file."""
    # Deterministic, so that the same recording gives the same file, map order included.
    return pack_record(record.SerializeToString(deterministic=True))
