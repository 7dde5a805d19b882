"""Track event packets in bulk: from columns to the bytes of a Perfetto trace.

Field numbers are those of protos/perfetto/trace/trace_packet.proto and track_event/track_event.proto.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport import wire
from memexport.model import UNKNOWN_SIZE

SEQUENCE_ID: Final = 1
FIRST_ON_SEQUENCE: Final = 1  # TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDS_INTERNED: Final = 2  # TracePacket.SEQ_NEEDS_INCREMENTAL_STATE

ANNOTATION_NAMES: Final = (
    "module", "bytes_delta", "class", "overload", "allocated", "bytes", "category", "input_bytes",
    "output_bytes", "inputs", "source", "traceparent",
)  # fmt: skip
"""Interned: the iid of an annotation's name is its place here, counted from 1."""
_IIDS: Final = {name: iid for iid, name in enumerate(ANNOTATION_NAMES, 1)}

_PACKET: Final = wire.tag(1, wire.LENGTH_DELIMITED)
_COMPRESSED_PACKETS: Final = wire.tag(50, wire.LENGTH_DELIMITED)
# Level 1 is no faster here; level 6 saves a twelfth more and takes three times as long.
_ZLIB_LEVEL: Final = 2

SLICE_BEGIN, SLICE_END, _INSTANT, COUNTER = 1, 2, 3, 4

# Only for packets that refer to interned data: an END and a counter's value stand for themselves.
WITH_INTERNED: Final = wire.varint_field(13, NEEDS_INTERNED)

Ints = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Instants:
    """Moments as equal-length columns.

    Attributes:
        track: the uuid of the track that each lies on.
        name: interned event name.
        size_bytes: `UNKNOWN_SIZE` for none.
        source, traceparent: interned values of annotations, 0 for none.
    """

    time_ns: Ints
    track: Ints
    name: Ints
    size_bytes: Ints
    source: Ints
    traceparent: Ints

    def at(self, rows: Any) -> Instants:
        """The rows that a NumPy index picks."""
        return Instants(*(column[rows] for column in vars(self).values()))


def encode_instants(instants: Instants) -> bytes:
    """One instant for each row."""
    shape = (
        (instants.size_bytes != UNKNOWN_SIZE) | (instants.source != 0) << 1 | (instants.traceparent != 0) << 2
    )
    blocks = ((rows, wire.records(len(rows), _instant(instants.at(rows)))) for rows in alike(shape))
    return joined(instants.time_ns, blocks)


def _instant(instants: Instants) -> list[wire.Piece]:
    """Of instants that have the same annotations."""
    event = [
        *integer_annotation("bytes", instants.size_bytes, UNKNOWN_SIZE),
        *text_annotation("source", instants.source),
        *text_annotation("traceparent", instants.traceparent),
        *wire.varint_field(9, _INSTANT),
        *wire.varint_field(10, instants.name),
        *wire.varint_field(11, instants.track),
    ]
    return event_packet(instants.time_ns, event, WITH_INTERNED)


def compressed(encoded: bytes) -> bytes:
    """One packet that holds the given packets."""
    content = zlib.compress(encoded, _ZLIB_LEVEL)
    packet = _COMPRESSED_PACKETS + wire.encode_varint(len(content)) + content
    return _PACKET + wire.encode_varint(len(packet)) + packet


def joined(time_ns: Ints, blocks: Iterable[wire.Block]) -> bytes:
    """All records; in their order only those of one time, as zlib finds more among records alike."""
    blocks = list(blocks)
    tied = _tied(time_ns)
    if not tied.any():
        return b"".join(records.tobytes() for _, records in blocks)
    loose = [records[~tied[rows]].tobytes() for rows, records in blocks]
    place = np.cumsum(tied) - 1
    ordered = [(place[rows[tied[rows]]], records[tied[rows]]) for rows, records in blocks]
    return b"".join(loose) + wire.weave(int(place[-1]) + 1, ordered)


def _tied(time_ns: Ints) -> Mask:
    """Which rows are of a time that another one has too."""
    order = np.argsort(time_ns, kind="stable")
    ordered = time_ns[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.zeros(len(time_ns), np.bool_)
    tied[order[1:][same]] = tied[order[:-1][same]] = True
    return tied


def alike(shape: Ints) -> Iterator[Ints]:
    """The rows of each value, which are small numbers ≥ 0."""
    for value in np.flatnonzero(np.bincount(shape)).tolist():
        yield np.flatnonzero(shape == value)


def text_annotation(name: str, value: Ints) -> list[wire.Piece]:
    """An annotation with an interned value; 0, then in all rows, stands for none."""
    if not value[0]:
        return []
    return wire.message_field(4, wire.varint_field(1, _IIDS[name]) + wire.varint_field(17, value))


def integer_annotation(name: str, value: Ints, null: int) -> list[wire.Piece]:
    """An annotation with a number; the null, then in all rows, stands for none."""
    if value[0] == null:
        return []
    return wire.message_field(4, wire.varint_field(1, _IIDS[name]) + wire.varint_field(4, value))


def event_packet(
    time_ns: Ints, event: list[wire.Piece], flags: Sequence[wire.Piece] = ()
) -> list[wire.Piece]:
    """A whole `packet` field of the Trace message around a track event."""
    body = [
        *wire.varint_field(8, time_ns),
        *wire.varint_field(10, SEQUENCE_ID),
        *wire.message_field(11, event),
        *flags,
    ]
    return wire.message_field(1, body)
