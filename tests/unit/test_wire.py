"""wire encodes what protobuf's own parser reads back as the same messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from memexport import wire

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)


def decode(encoded: bytes) -> list[int]:
    """The varints that follow each other in the bytes."""
    values, value, shift = [], 0, 0
    for byte in encoded:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(value)
            value = shift = 0
    return values


@given(st.integers(0, 2**70))
def test_one_number_round_trips(value: int) -> None:
    """encode_varint writes seven bits a byte, the low ones first, and no more bytes than needed."""
    encoded = wire.encode_varint(value)
    assert decode(encoded) == [value] and (encoded[-1] or not value)


@given(st.lists(U64, min_size=1, max_size=40))
def test_a_column_of_varints_equals_each_by_itself(values: list[int]) -> None:
    """Every row has as many bytes as the largest number needs."""
    encoded = wire.records(len(values), [wire.varint(np.array(values, np.uint64))])
    assert decode(encoded.tobytes()) == values
    assert encoded.shape == (len(values), len(wire.encode_varint(max(values))))


@pytest.mark.parametrize("k", range(1, 10))
def test_numbers_at_every_boundary_of_length(k: int) -> None:
    """2^7k − 1, 2^7k and 2^7k + 1 have the lengths of the format."""
    for value in (2 ** (7 * k) - 1, 2 ** (7 * k), 2 ** (7 * k) + 1):
        column = wire.varint(np.array([value, 0], np.uint64))
        assert column.width == len(wire.encode_varint(value))
        assert decode(wire.records(2, [column]).tobytes()) == [value, 0]


def test_the_callers_array_is_left_alone() -> None:
    """Also one that needs no conversion, whatever its width."""
    for highest in (1, 2**40):
        values = np.array([highest, 0], np.uint64)
        wire.records(2, [wire.varint(values)])
        assert values.tolist() == [highest, 0]


@given(st.lists(st.tuples(U64, I64, st.booleans(), st.integers(0, 2**32 - 1)), min_size=1, max_size=30))
def test_nested_messages_are_read_back_in_order(rows: list[tuple[int, int, bool, int]]) -> None:
    """Packets with a nested message in some rows and a negative number, woven from two kinds of records."""
    expected = Trace()
    for time, value, present, name in rows:
        packet = expected.packet.add(timestamp=time, trusted_packet_sequence_id=1)
        event = packet.track_event
        if present:
            event.debug_annotations.add(name_iid=2, int_value=value)
        event.type, event.name_iid = 1, name
    blocks = []
    for wanted in (True, False):
        at = np.flatnonzero([row[2] == wanted for row in rows])
        times, values, _, names = zip(*(rows[row] for row in at), strict=True) if len(at) else ((),) * 4
        annotation = wire.varint_field(1, 2) + wire.varint_field(4, np.array(values, np.int64))
        event_pieces = [
            *(wire.message_field(4, annotation) if wanted else []),
            *wire.varint_field(9, 1),
            *wire.varint_field(10, np.array(names, np.uint32)),
        ]
        body = [
            *wire.varint_field(8, np.array(times, np.uint64)),
            *wire.varint_field(10, 1),
            *wire.message_field(11, event_pieces),
        ]
        blocks.append((at, wire.records(len(at), wire.message_field(1, body))))
    assert Trace.FromString(wire.weave(len(rows), blocks)) == expected


def test_records_of_one_place_come_in_the_blocks_order() -> None:
    """Places without a record take nothing."""
    blocks = [
        (np.array([1, 4]), wire.records(2, [b"a", wire.varint(np.array([1, 2]))])),
        (np.array([0, 1]), wire.records(2, [b"long"])),
        (np.array([], np.int64), wire.records(0, [b"none"])),
    ]
    assert wire.weave(6, blocks) == b"longa\x01longa\x02"
    assert wire.weave(3, []) == b""


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_constant_pieces_repeat_in_every_row(rows: int) -> None:
    """A message without any column is the same in every row."""
    pieces = wire.message_field(1, wire.varint_field(8, 300))
    assert wire.records(rows, pieces).tobytes() == rows * bytes([0x0A, 3, 0x40, 0xAC, 0x02])


@given(st.lists(st.tuples(I64, I64), min_size=1, max_size=5))
def test_a_filled_template_holds_each_rows_numbers(rows: list[tuple[int, int]]) -> None:
    """Eight little-endian bytes at each place, and the template around them, in every row."""
    template = b"time" + bytes(8) + b"-" + bytes(8)
    filled = wire.filled(template, np.array([4, 13]), np.array(rows, np.int64))
    expected = [
        b"time" + first.to_bytes(8, "little", signed=True) + b"-" + second.to_bytes(8, "little", signed=True)
        for first, second in rows
    ]
    assert filled.tobytes() == b"".join(expected)


def test_a_template_without_places_is_repeated() -> None:
    """No numbers, no change."""
    assert wire.filled(b"ab", np.empty(0, np.int64), np.empty((2, 0), np.int64)).tobytes() == b"abab"
