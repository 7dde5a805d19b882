"""Packets of tensor lifetimes: bars on lanes, from columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from memexport import wire
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
        module, category, device: interned values of annotations, 0 for none.
    """

    time_ns: Ints
    begins: Mask
    track: Ints
    name: Ints
    size_bytes: Ints
    module: Ints
    category: Ints
    device: Ints

    def __len__(self) -> int:
        return len(self.time_ns)

    def at(self, rows: Any) -> Bars:
        """The rows that a NumPy index picks."""
        return Bars(*(getattr(self, column.name)[rows] for column in fields(self)))


def encode_bars(bars: Bars) -> bytes:
    """A BEGIN or an END packet for each row.

    A bar that has no END is drawn to the end of the trace, fading out.
    """
    return joined(bars.time_ns, _blocks(bars))


def _blocks(bars: Bars) -> Iterator[wire.Block]:
    """The ENDs, then the BEGINs by which annotations they have."""
    place = np.flatnonzero(~bars.begins)
    ends = bars.at(place)
    event = wire.varint_field(9, SLICE_END) + wire.varint_field(11, ends.track)
    yield place, wire.records(len(ends), event_packet(ends.time_ns, event))
    place = np.flatnonzero(bars.begins)
    begun = bars.at(place)
    shape = (begun.module != 0) | (begun.category != 0) << 1 | (begun.size_bytes != UNKNOWN_SIZE) << 2
    for rows in alike(shape):
        yield place[rows], wire.records(len(rows), _begin(begun.at(rows)))


def _begin(bars: Bars) -> list[wire.Piece]:
    """Of bars that have the same annotations."""
    event = [
        *integer_annotation("bytes", bars.size_bytes, UNKNOWN_SIZE),
        *text_annotation("module", bars.module),
        *text_annotation("category", bars.category),
        *text_annotation("device", bars.device),
        *wire.varint_field(9, SLICE_BEGIN),
        *wire.varint_field(10, bars.name),
        *wire.varint_field(11, bars.track),
    ]
    return event_packet(bars.time_ns, event, WITH_INTERNED)
