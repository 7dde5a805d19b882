"""Track event packets in bulk: from columns to the bytes of a Perfetto trace.

Field numbers are those of protos/perfetto/trace/trace_packet.proto and track_event/track_event.proto.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport import wire
from memexport.model import UNKNOWN_SIZE

SEQUENCE_ID: Final = 1
FIRST_ON_SEQUENCE: Final = 1  # TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDS_INTERNED: Final = 2  # TracePacket.SEQ_NEEDS_INCREMENTAL_STATE

ANNOTATION_NAMES: Final = (
    "module", "bytes_delta", "class", "overload", "allocated", "bytes", "category", "device",
    "inputs", "source", "traceparent",
)  # fmt: skip
"""Interned: the iid of an annotation's name is its place here, counted from 1."""
_IIDS: Final = {name: iid for iid, name in enumerate(ANNOTATION_NAMES, 1)}

_PACKET: Final = wire.tag(1, wire.LENGTH_DELIMITED)
_COMPRESSED_PACKETS: Final = wire.tag(50, wire.LENGTH_DELIMITED)
# Level 1 is no faster here; level 6 saves a twelfth more and takes three times as long.
_ZLIB_LEVEL: Final = 2

SLICE_BEGIN, SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4

# Only for packets that refer to interned data: an END and a counter's value stand for themselves.
WITH_INTERNED: Final = wire.varint_field(13, NEEDS_INTERNED)

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
        module, class_name, overload, inputs, source: interned values of annotations, 0 for none.
        bytes_delta: `UNKNOWN_SIZE` for none.
        allocated: the counter after the slice, −1 for none.
    """

    begin_ns: Ints
    end_ns: Ints
    track: Ints
    name: Ints
    category: Ints
    module: Ints
    class_name: Ints
    overload: Ints
    inputs: Ints
    source: Ints
    bytes_delta: Ints
    allocated: Ints

    def __len__(self) -> int:
        return len(self.begin_ns)

    def at(self, rows: Any) -> Slices:
        """The slices that a NumPy index picks."""
        return Slices(*(getattr(self, column.name)[rows] for column in fields(self)))


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
        return Instants(*(getattr(self, column.name)[rows] for column in fields(self)))


def encode_slices(slices: Slices) -> bytes:
    """A BEGIN and an END packet for each slice.

    The importer sorts by time, and leaves packets of one time as they stand. So ENDs come first: a slice that
    ends when another begins is not around it. Of two that begin at once the outer one ended later; where
    there are such, BEGINs go from the last ended to the first. Then come the slices without a length, each as
    a pair; but those at the very end of a longer one go before its END.
    """
    empty = slices.begin_ns == slices.end_ns
    early = late = b""
    if empty.any():
        closing = empty & _closes_later(slices, empty)
        early, late = _pairs(slices.at(closing)), _pairs(slices.at(empty & ~closing))
        slices = slices.at(~empty)
    ends = wire.records(len(slices), _end(slices)).tobytes()
    backwards = slices.at(np.s_[::-1])
    return early + ends + joined(backwards.begin_ns, _begin_blocks(backwards)) + late


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


def encode_counter(time_ns: Ints, track: int, value: Ints) -> bytes:
    """A value for each row."""
    event = [*wire.varint_field(9, _COUNTER), *wire.varint_field(11, track), *wire.varint_field(30, value)]
    return wire.records(len(time_ns), event_packet(time_ns, event)).tobytes()


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


def _pairs(slices: Slices) -> bytes:
    ends = np.arange(len(slices)), wire.records(len(slices), _end(slices))
    return wire.weave(len(slices), [*_begin_blocks(slices), ends])


def joined(time_ns: Ints, blocks: Iterable[wire.Block]) -> bytes:
    """All records; in their order only where two have one time, as zlib finds more among records alike."""
    ordered = np.sort(time_ns)
    if (ordered[1:] > ordered[:-1]).all():
        return b"".join(records.tobytes() for _, records in blocks)
    return wire.weave(len(time_ns), blocks)


def _begin_blocks(slices: Slices) -> Iterator[wire.Block]:
    """The BEGINs by which annotations they have."""
    shape = (
        (slices.module != 0)
        | (slices.class_name != 0) << 1
        | (slices.overload != 0) << 2
        | (slices.allocated >= 0) << 3
        | (slices.bytes_delta != UNKNOWN_SIZE) << 4
        | (slices.bytes_delta < 0) << 5  # takes ten bytes, which the others are spared
        | (slices.inputs != 0) << 6
        | (slices.source != 0) << 7
    )
    for rows in alike(shape):
        yield rows, wire.records(len(rows), _begin(slices.at(rows)))


def alike(shape: Ints) -> Iterator[Ints]:
    """The rows of each value, which are small numbers ≥ 0."""
    for value in np.flatnonzero(np.bincount(shape)).tolist():
        yield np.flatnonzero(shape == value)


def _begin(slices: Slices) -> list[wire.Piece]:
    """Of slices that have the same annotations."""
    event = [
        *wire.varint_field(3, slices.category),
        *text_annotation("module", slices.module),
        *text_annotation("class", slices.class_name),
        *text_annotation("overload", slices.overload),
        *text_annotation("inputs", slices.inputs),
        *text_annotation("source", slices.source),
        *integer_annotation("bytes_delta", slices.bytes_delta, UNKNOWN_SIZE),
        *integer_annotation("allocated", slices.allocated, -1),
        *wire.varint_field(9, SLICE_BEGIN),
        *wire.varint_field(10, slices.name),
        *wire.varint_field(11, slices.track),
    ]
    return event_packet(slices.begin_ns, event, WITH_INTERNED)


def _end(slices: Slices) -> list[wire.Piece]:
    event = wire.varint_field(9, SLICE_END) + wire.varint_field(11, slices.track)
    return event_packet(slices.end_ns, event)


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
