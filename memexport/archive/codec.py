"""What an archive's records hold, as protobuf messages, and back to the model. No files here.

Column encodings are in `columns`, growing tables in `tables`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from google.protobuf.message import DecodeError

from memexport.archive.columns import DECODING_ORDER, CodecError, ColumnDecoder, ColumnEncoder, column_id
from memexport.archive.v1 import archive_pb2 as pb
from memexport.model import (
    COLUMNS,
    NULLS,
    SCHEMA_VERSION,
    Clock,
    Column,
    Device,
    EventBatch,
    RecordingEnd,
    RecordingInfo,
)

SCHEMA_MAJOR, SCHEMA_MINOR = map(int, SCHEMA_VERSION.split("."))
MAX_BATCH_EVENTS: Final = 1 << 20
"""No batch in a file has more, so that a hostile file cannot claim more memory than that takes."""

# Header fields that are called alike in `RecordingInfo` and unset where that is None.
_OPTIONAL_FIELDS: Final = (
    "producer", "producer_version", "start_time_unix_ns", "host", "pid", "rank", "local_rank", "world_size",
    "torch_version", "python_version",
)  # fmt: skip
_CLOCKS: Final[dict[Clock, pb.Clock]] = {"unix": pb.CLOCK_UNIX, "index": pb.CLOCK_INDEX}
_FORMAT: Final = "memexport.archive"


def parse_record(body: bytes) -> pb.Record:
    """The record whose body this is.

    Raises:
        CodecError: it is no protobuf message of that type.
    """
    try:
        return pb.Record.FromString(body)
    except DecodeError as error:
        raise CodecError(f"not a record of an archive: {error}") from error


def encodable(text: str) -> str:
    """The text as UTF-8 can hold it: lone surrogates, of undecodable file names, as backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def encode_header(info: RecordingInfo) -> pb.Header:
    """The header of a recording; its devices go into the tables."""
    header = pb.Header.FromString(info.unknown_fields)  # what a newer version wrote stays
    header.schema_major, header.schema_minor = SCHEMA_MAJOR, SCHEMA_MINOR
    header.origin_format = (info.origin or _FORMAT) if info.format == _FORMAT else info.format
    header.clock = _CLOCKS[info.clock]
    for name in _OPTIONAL_FIELDS:
        value = getattr(info, name)
        if value is not None:
            setattr(header, name, encodable(value) if isinstance(value, str) else value)
    header.command_line.extend(map(encodable, info.command_line))
    header.options.update({encodable(key): encodable(value) for key, value in info.options.items()})
    return header


def decode_header(header: pb.Header, devices: list[Device]) -> RecordingInfo:
    """What the header says, with the caller's list of devices. The major version is the caller's to check."""
    known = {name: getattr(header, name) for name in _OPTIONAL_FIELDS if header.HasField(name)}
    return RecordingInfo(
        format=_FORMAT,
        origin=None if header.origin_format in ("", _FORMAT) else header.origin_format,
        schema_version=f"{header.schema_major}.{header.schema_minor}",
        devices=devices,
        clock="index" if header.clock == pb.CLOCK_INDEX else "unix",
        command_line=tuple(header.command_line),
        options=dict(header.options),
        unknown_fields=_unknown_fields(header),
        **known,
    )


def _unknown_fields(header: pb.Header) -> bytes:
    """The fields that `RecordingInfo` has no place for: those of newer versions."""
    rest = pb.Header()
    rest.CopyFrom(header)
    for descriptor, _ in header.ListFields():
        rest.ClearField(descriptor.name)
    return rest.SerializeToString(deterministic=True)


class BatchEncoder:
    """Encodes batches; not for several threads at a time."""

    def __init__(self) -> None:
        self._columns = ColumnEncoder()

    def encode(self, batch: EventBatch, first_event: int) -> pb.EventBatch:
        """A batch of 1 to `MAX_BATCH_EVENTS` events, the first of which has that number in the recording."""
        columns = [self._columns.encode(name, batch) for name in COLUMNS]
        return pb.EventBatch(
            first_event=first_event,
            event_count=len(batch),
            columns=[column for column in columns if column is not None],
        )


class BatchDecoder:
    """Decodes batches; not for several threads at a time."""

    _NAMES: Final = {column_id(name): name for name in COLUMNS}

    def __init__(self) -> None:
        self._columns = ColumnDecoder()

    def decode(self, message: pb.EventBatch) -> EventBatch:
        """The batch. Columns that this version does not know are left out; `unknown_columns` names them.

        Raises:
            CodecError: it is not what the schema says.
        """
        count = message.event_count
        if not 0 < count <= MAX_BATCH_EVENTS:
            raise CodecError(f"a batch of {count} events")
        stored = {self._NAMES[c.id]: c for c in message.columns if c.id in self._NAMES}
        if len(stored) + len(unknown_columns(message)) != len(message.columns):
            raise CodecError("a column that stands twice in a batch")
        decoded: dict[str, Column] = {}
        for name in DECODING_ORDER:
            if name in stored:
                decoded[name] = self._columns.decode(name, stored[name], count, decoded)
            else:
                decoded[name] = np.broadcast_to(np.array(NULLS[name], COLUMNS[name]), count)
        return EventBatch(**decoded)


def unknown_columns(message: pb.EventBatch) -> list[int]:
    """The numbers of the columns that this version does not know."""
    return [column.id for column in message.columns if column.id not in BatchDecoder._NAMES]


def encode_footer(end: RecordingEnd) -> pb.Footer:
    """The footer, but for its counts and offset."""
    return pb.Footer(
        warnings=map(encodable, end.warnings),
        dropped_events=end.dropped_events,
        alloc_retries=end.alloc_retries,
        ooms=end.ooms,
    )


def decode_footer(footer: pb.Footer) -> RecordingEnd:
    """What the footer says, but for its counts."""
    return RecordingEnd(
        warnings=tuple(footer.warnings),
        dropped_events=footer.dropped_events,
        alloc_retries=footer.alloc_retries if footer.HasField("alloc_retries") else None,
        ooms=footer.ooms if footer.HasField("ooms") else None,
    )


def split(batch: EventBatch, size: int) -> Iterator[EventBatch]:
    """The batch in parts of at most `size` events; none for an empty batch."""
    if 0 < len(batch) <= size:
        yield batch
        return
    for first in range(0, len(batch), size):
        yield batch.select(slice(first, first + size))


__all__ = [
    "MAX_BATCH_EVENTS",
    "SCHEMA_MAJOR",
    "SCHEMA_MINOR",
    "BatchDecoder",
    "BatchEncoder",
    "CodecError",
    "decode_footer",
    "decode_header",
    "encodable",
    "encode_footer",
    "encode_header",
    "parse_record",
    "split",
    "unknown_columns",
]
