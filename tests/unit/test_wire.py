"""wire encodes exactly what protobuf's own serializer does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from memexport import wire

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)


@given(st.integers(0, 2**70))
def test_one_number_round_trips(value: int) -> None:
    """encode_varint writes seven bits a byte, the low ones first."""
    encoded = wire.encode_varint(value)
    assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded)) == value
    assert all(byte & 0x80 for byte in encoded[:-1]) and not encoded[-1] & 0x80


@given(st.lists(U64, min_size=1, max_size=40))
def test_a_column_of_varints_equals_each_by_itself(values: list[int]) -> None:
    """Every row has exactly the bytes that it needs, whatever the others need."""
    encoded = wire.join(len(values), [wire.varint(np.array(values, np.uint64))])
    assert encoded == b"".join(map(wire.encode_varint, values))


def test_numbers_at_every_boundary_of_length() -> None:
    """2^7k − 1, 2^7k and 2^7k + 1 have the lengths of the format."""
    values = [near for k in range(1, 10) for near in (2 ** (7 * k) - 1, 2 ** (7 * k), 2 ** (7 * k) + 1)] + [
        0,
        2**64 - 1,
    ]
    encoded = wire.join(len(values), [wire.varint(np.array(values, np.uint64))])
    assert encoded == b"".join(map(wire.encode_varint, values))


@given(st.lists(st.tuples(U64, I64, st.booleans(), st.integers(0, 2**32 - 1)), max_size=30))
def test_nested_messages_equal_protobufs_own(rows: list[tuple[int, int, bool, int]]) -> None:
    """Packets with a nested message, an optional field and a negative number are canonical."""
    expected = Trace()
    for time, value, present, name in rows:
        packet = expected.packet.add(timestamp=time, trusted_packet_sequence_id=1)
        event = packet.track_event
        if present:
            event.debug_annotations.add(name_iid=2, int_value=value)
        event.type, event.name_iid = 1, name
        packet.sequence_flags = 2
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    times, values = np.array(columns[0], np.uint64), np.array(columns[1], np.int64)
    annotation = wire.message_field(4, wire.varint_field(1, 2) + wire.varint_field(4, values))
    event_pieces = [
        *wire.optional(np.array(columns[2], np.bool_), annotation),
        *wire.varint_field(9, 1),
        *wire.varint_field(10, np.array(columns[3], np.uint32)),
    ]
    body = [
        *wire.varint_field(8, times),
        *wire.varint_field(10, 1),
        *wire.message_field(11, event_pieces),
        *wire.varint_field(13, 2),
    ]
    assert wire.join(len(rows), wire.message_field(1, body)) == expected.SerializeToString()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_constant_pieces_repeat_in_every_row(rows: int) -> None:
    """A message without any column has a length known beforehand."""
    pieces = wire.message_field(1, wire.varint_field(8, 300))
    assert wire.join(rows, pieces) == rows * bytes([0x0A, 3, 0x40, 0xAC, 0x02])
