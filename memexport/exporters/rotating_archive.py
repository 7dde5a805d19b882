"""An archive that never takes more than so many bytes: it keeps the first and the last of a recording."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Final

from memexport.archive.codec import MAX_BATCH_EVENTS, split
from memexport.archive.v1 import archive_pb2 as pb
from memexport.archive_limit import LEAST_BYTES
from memexport.errors import UsageError
from memexport.exporters._archive_baseline import DROPPED, Snapshot, SnapshotFold, baseline
from memexport.exporters.archive import ArchiveExporter, packed
from memexport.exporters.destination import FileDestination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

# Of the limit, in eighths. A file that is written anew lies beside the old one, and the two are within it.
_HEAD, _SEGMENT, _FULL = 2, 1, 5
# What an event takes at most, roughly: a segment is to hold several batches.
_EVENT_BYTES, _BATCHES_A_SEGMENT = 40, 4
_MOST_BATCH_EVENTS: Final = 16_384
# What the index takes for each batch, and the rest of the end of the file.
_ENTRY_BYTES, _END_BYTES = 64, 1 << 14


@dataclass(frozen=True)
class _Head:
    """What is never left out.

    Attributes:
        size_bytes: that it takes.
        after: the recording when it is over.
        events: how many it has; `batches` likewise.
    """

    size_bytes: int
    after: Snapshot
    events: int
    batches: int


@dataclass(frozen=True)
class _Front:
    """Whatever a file that is written anew has before its segments, as whole records.

    Attributes:
        events: how many there are in `restated`.
        then: the recording where the segments begin.
    """

    head: bytes
    tables: bytes
    restated: bytes
    events: int
    then: Snapshot

    @property
    def size_bytes(self) -> int:
        return len(self.head) + len(self.tables) + len(self.restated)

    def entry(self) -> pb.IndexEntry:
        """Of what is said anew."""
        offset, time_unix_ns = len(self.head) + len(self.tables), self.then.time_unix_ns
        return pb.IndexEntry(
            offset=offset,
            event_count=self.events,
            first_time_unix_ns=time_unix_ns,
            last_time_unix_ns=time_unix_ns,
        )


@dataclass
class _Piece:
    """Whole records in the file: the growth of the tables, or a batch, with its entry in the index."""

    offset: int
    length: int
    entry: pb.IndexEntry = field(default_factory=pb.IndexEntry)


@dataclass
class _Segment:
    """A stretch of the file after its head.

    Attributes:
        before: the recording when it began.
        first_event: the number of its first event.
    """

    before: Snapshot
    first_event: int
    batches: list[_Piece] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """What its batches take."""
        return sum(piece.length for piece in self.batches)


class RotatingArchiveExporter(ArchiveExporter):
    """Writes a `.memx` file, and leaves out what is in the middle when it would become too large.

    The first quarter of the limit is kept for ever. What follows is kept in segments; when the file is full,
    all but the latest are left out: the file is written anew beside the old one, and takes its place at once,
    so that there is a whole one at every moment. Events that are left out are counted in the file, and what
    they changed of what is live is said anew, so that the rest reads as if nothing was missing.

    Args:
        destination: a file of this machine that is written in place.
        max_bytes: what the file takes at most, with the one beside it.

    Raises:
        UsageError: the limit is less than `LEAST_BYTES`.
    """

    def __init__(self, destination: FileDestination, max_bytes: int) -> None:
        if max_bytes < LEAST_BYTES:
            raise UsageError(f"an archive cannot be kept within {max_bytes} bytes", hint="at least 1 MiB")
        super().__init__(destination)
        self._file = destination
        self._max_bytes = max_bytes
        segment_events = max_bytes * _SEGMENT // 8 // _EVENT_BYTES
        self._batch_events = min(_MOST_BATCH_EVENTS, segment_events // _BATCHES_A_SEGMENT)
        self._head: _Head | None = None
        self._growths: list[_Piece] = []
        self._segments: list[_Segment] = []
        self._left_out = 0
        self._is_full = False
        self._fold: SnapshotFold

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file and write what is true for the whole recording."""
        self._strings = tables.strings
        self._strings.intern(DROPPED)
        self._fold = SnapshotFold(tables.strings)
        super().begin(info, tables)

    def write(self, batch: EventBatch) -> None:
        """Append the events, after what the tables gained; leave older ones out if there is no room."""
        for part in split(batch, self._batch_events):
            if not self._is_full:
                self._write_part(part)
            if self._is_full:
                self._left_out += len(part)

    def end(self, end: RecordingEnd) -> None:
        """Append the rest of the tables, the index and the totals, and close the file."""
        super().end(replace(end, dropped_events=end.dropped_events + self.dropped_events))

    @property
    def dropped_events(self) -> int:
        """How many events were left out until now."""
        if self._head is None:
            return 0
        return self._left_out + self._segments[0].first_event - self._head.events

    def _write_part(self, part: EventBatch) -> None:
        growth = self._growth()
        record = packed(pb.Record(batch=self._encoder.encode(part, self._events)))
        self._make_room(len(growth) + len(record))
        if self._is_full:
            return
        offset, entry = self._file.written_bytes, self._entry(part, len(growth))
        self._file.write(growth + record)
        self._index.batches.append(entry)
        if self._segments:
            self._growths += [_Piece(offset, len(growth))] if growth else []
            self._segments[-1].batches.append(_Piece(offset + len(growth), len(record), entry))
        self._events += len(part)
        self._fold.add(part)

    def _make_room(self, more: int) -> None:
        """Let there be room for so many bytes. If there cannot be, all else is left out from now on."""
        written = self._file.written_bytes
        if self._head is None:
            if written + more <= self._share(_HEAD):
                return
            self._head = _Head(written, self._fold.snapshot(), self._events, len(self._index.batches))
            self._begin_segment()
        if self._taken(written + more) > self._share(_FULL):
            self._leave_out_the_middle(self._head, more)
        if self._segments[-1].size_bytes + more > self._share(_SEGMENT) and self._segments[-1].batches:
            self._begin_segment()

    def _begin_segment(self) -> None:
        self._segments.append(_Segment(self._fold.snapshot(), self._events))

    def _leave_out_the_middle(self, head: _Head, more: int) -> None:
        """Write the file anew: its head, the tables, and as many of the latest segments as may be."""
        self._begin_segment()
        for first in range(1, len(self._segments)):
            kept = self._segments[first:]
            front = self._front(head, kept[0])
            size = sum(segment.size_bytes for segment in kept)
            if front is not None and self._fits(front.size_bytes + size, more):
                self._rewrite(head, front, kept)
                return
        self._segments.pop()
        self._is_full = True

    def _fits(self, size: int, more: int) -> bool:
        both = self._file.written_bytes + size
        return both <= self._max_bytes and self._taken(size + more) <= self._share(_FULL)

    def _front(self, head: _Head, first: _Segment) -> _Front | None:
        """What comes before this segment; None if it would be more than what is left out."""
        restated = baseline(head.after, first.before, self._strings)
        dropped = first.first_event - head.events
        if len(restated) > min(dropped, MAX_BATCH_EVENTS):
            return None
        message = self._encoder.encode(restated, first.first_event - len(restated))
        message.dropped_events = dropped
        tables = b"".join(self._file.read(piece.offset, piece.length) for piece in self._growths)
        return _Front(
            self._file.read(0, head.size_bytes),
            tables,
            packed(pb.Record(batch=message)),
            len(restated),
            first.before,
        )

    def _rewrite(self, head: _Head, front: _Front, kept: list[_Segment]) -> None:
        batches = [piece for segment in kept for piece in segment.batches]
        read = (self._file.read(piece.offset, piece.length) for piece in batches)
        self._file.rewrite(itertools.chain((front.head, front.tables, front.restated), read))
        self._growths = [_Piece(head.size_bytes, len(front.tables))]
        del self._index.batches[head.batches :]
        self._index.batches.append(front.entry())
        offset = front.size_bytes
        for piece in batches:
            piece.offset = piece.entry.offset = offset
            self._index.batches.append(piece.entry)
            offset += piece.length
        self._segments = kept

    def _taken(self, size: int) -> int:
        """What a file of this size takes with its end."""
        return size + _ENTRY_BYTES * len(self._index.batches) + _END_BYTES

    def _share(self, eighths: int) -> int:
        return self._max_bytes * eighths // 8
