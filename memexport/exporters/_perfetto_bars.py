"""Packets of tensor lifetimes: bars on lanes, from columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memexport import wire
from memexport.exporters._perfetto_moments import Moments
from memexport.exporters._perfetto_packets import (
    SLICE_BEGIN,
    SLICE_END,
    WITH_INTERNED,
    Ints,
    Mask,
    alike,
    event_packet,
    integer_annotation,
    joined,
    text_annotation,
)
from memexport.model import UNKNOWN_SIZE


@dataclass(frozen=True)
class Bars:
    """Begins and ends of tensor lifetimes, in the order in which they happen, as equal-length columns.

    Attributes:
        begins: whether a bar begins; else one ends, and the columns that follow `track` mean nothing.
        track: the uuid of its lane.
        name: interned event name.
        module, category: interned values of annotations, 0 for none.
    """

    time_ns: Ints
    begins: Mask
    track: Ints
    name: Ints
    size_bytes: Ints
    module: Ints
    category: Ints

    def __len__(self) -> int:
        return len(self.time_ns)

    def at(self, rows: Any) -> Bars:
        """The rows that a NumPy index picks."""
        return Bars(*(column[rows] for column in vars(self).values()))


def encode_bars(bars: Bars, moments: Moments) -> bytes:
    """A BEGIN or an END packet for each row, with what counters say at its time.

    A bar that has no END is drawn to the end of the trace, fading out.
    """
    return joined(bars.time_ns, _blocks(bars, moments))


def _blocks(bars: Bars, moments: Moments) -> Iterator[wire.Block]:
    """The ENDs, then the BEGINs, by which fields they have."""
    carried = moments.take(bars.time_ns)
    shape = (
        bars.begins
        | (bars.begins & (bars.module != 0)) << 1
        | (bars.begins & (bars.category != 0)) << 2
        | (bars.begins & (bars.size_bytes != UNKNOWN_SIZE)) << 3
        | moments.shape(carried) << 4
    )
    for rows in alike(shape):
        encode = _begin if bars.begins[rows[0]] else _end
        yield rows, wire.records(len(rows), encode(bars.at(rows), moments.pieces(carried[rows])))


def _begin(bars: Bars, carried: list[wire.Piece]) -> list[wire.Piece]:
    """Of bars that have the same annotations."""
    event = [
        *integer_annotation("bytes", bars.size_bytes, UNKNOWN_SIZE),
        *text_annotation("module", bars.module),
        *text_annotation("category", bars.category),
        *wire.varint_field(9, SLICE_BEGIN),
        *wire.varint_field(10, bars.name),
        *wire.varint_field(11, bars.track),
        *carried,
    ]
    return event_packet(bars.time_ns, event, WITH_INTERNED)


def _end(bars: Bars, carried: list[wire.Piece]) -> list[wire.Piece]:
    event = wire.varint_field(9, SLICE_END) + wire.varint_field(11, bars.track) + carried
    return event_packet(bars.time_ns, event)
