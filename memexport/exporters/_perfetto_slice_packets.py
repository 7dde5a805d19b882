"""Slices of threads in a Perfetto trace: a BEGIN and an END packet each, from columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

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
class Slices:
    """Slices as equal-length columns, in the order in which they ended.

    Attributes:
        begin_ns, end_ns: on the trace's time axis.
        track: the uuid of the track that each lies on.
        name: interned event name.
        category: interned category.
        module, class_name, overload, inputs, source: interned values of annotations, 0 for none.
        bytes_delta: `UNKNOWN_SIZE` for none.
        allocated: the device's counter after it, −1 for none. The counter's own value at that time is not
            where one looks who has selected the slice.
        input_bytes, output_bytes: of a module's call, −1 for none.
        carried: the group of counter values that goes with the end; −1 for none. A slice without a length
            has none.
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
    input_bytes: Ints
    output_bytes: Ints
    carried: Ints

    def __len__(self) -> int:
        return len(self.begin_ns)

    def at(self, rows: Any) -> Slices:
        """The slices that a NumPy index picks."""
        return Slices(*(column[rows] for column in vars(self).values()))


class SlicePackets:
    """Encodes the slices of one batch.

    Args:
        moments: the groups of counter values that ENDs carry.
        default_track: the uuid that a packet without one means; 0 for none.
    """

    def __init__(self, moments: Moments, default_track: int) -> None:
        self._moments = moments
        self._default_track = default_track

    def encode(self, slices: Slices) -> bytes:
        """A BEGIN and an END packet for each slice.

        The importer sorts by time, and leaves packets of one time as they stand. So ENDs come first: a slice
        that ends when another begins is not around it. Of two that begin at once the outer one ended later;
        where there are such, BEGINs go from the last ended to the first. Then come the slices without a
        length, each as a pair; but those at the very end of a longer one go before its END.
        """
        empty = slices.begin_ns == slices.end_ns
        early = late = b""
        if empty.any():
            closing = empty & _closes_later(slices, empty)
            early, late = self._pairs(slices.at(closing)), self._pairs(slices.at(empty & ~closing))
            slices = slices.at(~empty)
        # In no order: whichever END comes first closes the innermost.
        ends = b"".join(records.tobytes() for _, records in self._end_blocks(slices))
        backwards = slices.at(np.s_[::-1])
        return early + ends + joined(backwards.begin_ns, self._begin_blocks(backwards)) + late

    def _pairs(self, slices: Slices) -> bytes:
        return wire.weave(len(slices), [*self._begin_blocks(slices), *self._end_blocks(slices)])

    def _begin_blocks(self, slices: Slices) -> Iterator[wire.Block]:
        """The BEGINs by which fields they have."""
        shape = (
            (slices.module != 0)
            | (slices.class_name != 0) << 1
            | (slices.overload != 0) << 2
            | (slices.bytes_delta != UNKNOWN_SIZE) << 3
            | (slices.bytes_delta < 0) << 4  # takes ten bytes, which the others are spared
            | (slices.inputs != 0) << 5
            | (slices.source != 0) << 6
            | (slices.track == self._default_track) << 7
            | (slices.allocated >= 0) << 8
            | (slices.input_bytes >= 0) << 9
            | (slices.output_bytes >= 0) << 10
        )
        for rows in alike(shape):
            yield rows, wire.records(len(rows), self._begin(slices.at(rows)))

    def _end_blocks(self, slices: Slices) -> Iterator[wire.Block]:
        """The ENDs by which fields they have."""
        is_default = slices.track == self._default_track
        for rows in alike(self._moments.shape(slices.carried) << 1 | is_default):
            event = [
                *wire.varint_field(9, SLICE_END),
                *self._track(slices.track[rows]),
                *self._moments.pieces(slices.carried[rows]),
            ]
            yield rows, wire.records(len(rows), event_packet(slices.end_ns[rows], event))

    def _begin(self, slices: Slices) -> list[wire.Piece]:
        """Of slices that have the same fields."""
        event = [
            *wire.varint_field(3, slices.category),
            *text_annotation("module", slices.module),
            *text_annotation("class", slices.class_name),
            *text_annotation("overload", slices.overload),
            *text_annotation("inputs", slices.inputs),
            *text_annotation("source", slices.source),
            *integer_annotation("bytes_delta", slices.bytes_delta, UNKNOWN_SIZE),
            *integer_annotation("allocated", slices.allocated, -1),
            *integer_annotation("input_bytes", slices.input_bytes, -1),
            *integer_annotation("output_bytes", slices.output_bytes, -1),
            *wire.varint_field(9, SLICE_BEGIN),
            *wire.varint_field(10, slices.name),
            *self._track(slices.track),
        ]
        return event_packet(slices.begin_ns, event, WITH_INTERNED)

    def _track(self, track: Ints) -> list[wire.Piece]:
        return [] if track[0] == self._default_track else wire.varint_field(11, track)


def _closes_later(slices: Slices, empty: Mask) -> Mask:
    """Which slices are followed, in the record, by a lasting one that ends at the same time."""
    lasting = np.flatnonzero(~empty & np.isin(slices.end_ns, slices.end_ns[empty]))
    last_end = dict(zip(slices.end_ns[lasting].tolist(), lasting.tolist(), strict=True))
    followers = np.array([last_end.get(time, -1) for time in slices.end_ns[empty].tolist()], np.int64)
    closing = np.zeros(len(slices), np.bool_)
    closing[empty] = followers > np.flatnonzero(empty)
    return closing
