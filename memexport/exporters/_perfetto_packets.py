"""Track event packets in bulk: from columns to the bytes of a Perfetto trace.

Field numbers are those of protos/perfetto/trace/trace_packet.proto and track_event/track_event.proto.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport import wire
from memexport.model import UNKNOWN_SIZE

SEQUENCE_ID: Final = 1
FIRST_ON_SEQUENCE: Final = 1  # TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDS_INTERNED: Final = 2  # TracePacket.SEQ_NEEDS_INCREMENTAL_STATE

MODULE_IID: Final = 1
BYTES_DELTA_IID: Final = 2
CLASS_IID: Final = 3
ANNOTATION_NAMES: Final = {MODULE_IID: "module", BYTES_DELTA_IID: "bytes_delta", CLASS_IID: "class"}

_PACKET: Final = wire.tag(1, wire.LENGTH_DELIMITED)
_COMPRESSED_PACKETS: Final = wire.tag(50, wire.LENGTH_DELIMITED)
# Packets repeat so much that the highest level saves a fifth more and takes many times as long.
_ZLIB_LEVEL: Final = 1

_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4

# Only for packets that refer to interned data: an END and a counter's value stand for themselves.
_NEEDS_INTERNED: Final = wire.varint_field(13, NEEDS_INTERNED)

Ints = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Slices:
    """Slices as equal-length columns, in the order in which they ended.

    Attributes:
        begin_ns, end_ns: on the trace's time axis.
        track: the uuid of the track that each lies on.
        name: interned event name.
        category: interned category.
        text_name: interned name of an annotation: `MODULE_IID` or `CLASS_IID`.
        text: its interned value, 0 for none.
        bytes_delta: `UNKNOWN_SIZE` for none.
    """

    begin_ns: Ints
    end_ns: Ints
    track: Ints
    name: Ints
    category: Ints
    text_name: Ints
    text: Ints
    bytes_delta: Ints

    def __len__(self) -> int:
        return len(self.begin_ns)

    def at(self, rows: Any) -> Slices:
        """The slices that a NumPy index picks."""
        return Slices(*(getattr(self, column.name)[rows] for column in fields(self)))


def encode_slices(slices: Slices) -> bytes:
    """A BEGIN and an END packet for each slice.

    The importer sorts by time, and leaves packets of one time as they stand. So ENDs come first (a slice that
    ends when another begins is not around it), then BEGINs from the last ended to the first (of two that
    begin at once the outer one ended later), then the slices without a length, each as a pair. Those that lie
    at the very end of a longer slice go before its END.
    """
    empty = slices.begin_ns == slices.end_ns
    if not empty.any():
        return _ends(slices) + _begins(slices.at(np.s_[::-1]))
    lasting = slices.at(~empty)
    closing = empty & _closes_later(slices, empty)
    early, late = _pairs(slices.at(closing)), _pairs(slices.at(empty & ~closing))
    return early + _ends(lasting) + _begins(lasting.at(np.s_[::-1])) + late


def encode_instants(time_ns: Ints, track: Ints, name: Ints) -> bytes:
    """One instant for each row; `name` is interned."""
    event = [*wire.varint_field(9, _INSTANT), *wire.varint_field(10, name), *wire.varint_field(11, track)]
    return wire.join(len(time_ns), _packet(time_ns, event, _NEEDS_INTERNED))


def encode_counters(time_ns: Ints, counters: Iterable[tuple[int, Ints, Mask]]) -> bytes:
    """Values of counters that change at the same times: for each its track, its values, and where it has one.

    What changes together stands together: the bytes that repeat are then near enough for zlib to see.
    """
    pieces = []
    for track, value, present in counters:
        event = [
            *wire.varint_field(9, _COUNTER),
            *wire.varint_field(11, track),
            *wire.varint_field(30, value),
        ]
        pieces += wire.optional(present, _packet(time_ns, event))
    return wire.join(len(time_ns), pieces)


def compressed(encoded: bytes) -> bytes:
    """One packet that holds the given packets."""
    content = zlib.compress(encoded, _ZLIB_LEVEL)
    packet = _COMPRESSED_PACKETS + wire.encode_varint(len(content)) + content
    return _PACKET + wire.encode_varint(len(packet)) + packet


def _closes_later(slices: Slices, empty: Mask) -> Mask:
    """Which slices are followed, in the record, by a lasting one that ends at the same time."""
    lasting = np.flatnonzero(~empty & np.isin(slices.end_ns, slices.end_ns[empty]))
    last_end = dict(zip(slices.end_ns[lasting].tolist(), lasting.tolist(), strict=True))
    followers = np.array([last_end.get(time, -1) for time in slices.end_ns[empty].tolist()], np.int64)
    closing = np.zeros(len(slices), np.bool_)
    closing[empty] = followers > np.flatnonzero(empty)
    return closing


def _begins(slices: Slices) -> bytes:
    return wire.join(len(slices), _begin(slices))


def _ends(slices: Slices) -> bytes:
    return wire.join(len(slices), _end(slices))


def _pairs(slices: Slices) -> bytes:
    return wire.join(len(slices), _begin(slices) + _end(slices))


def _begin(slices: Slices) -> list[wire.Piece]:
    text = wire.varint_field(1, slices.text_name) + wire.varint_field(17, slices.text)
    delta = wire.varint_field(1, BYTES_DELTA_IID) + wire.varint_field(4, slices.bytes_delta)
    event = [
        *wire.varint_field(3, slices.category),
        *wire.optional(slices.text != 0, wire.message_field(4, text)),
        *wire.optional(slices.bytes_delta != UNKNOWN_SIZE, wire.message_field(4, delta)),
        *wire.varint_field(9, _SLICE_BEGIN),
        *wire.varint_field(10, slices.name),
        *wire.varint_field(11, slices.track),
    ]
    return _packet(slices.begin_ns, event, _NEEDS_INTERNED)


def _end(slices: Slices) -> list[wire.Piece]:
    event = wire.varint_field(9, _SLICE_END) + wire.varint_field(11, slices.track)
    return _packet(slices.end_ns, event)


def _packet(time_ns: Ints, event: list[wire.Piece], flags: Sequence[wire.Piece] = ()) -> list[wire.Piece]:
    """A whole `packet` field of the Trace message around a track event."""
    body = [
        *wire.varint_field(8, time_ns),
        *wire.varint_field(10, SEQUENCE_ID),
        *wire.message_field(11, event),
        *flags,
    ]
    return wire.message_field(1, body)
