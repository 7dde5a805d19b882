"""Protobuf wire encoding of many small messages at once, from columns.

A message kind is a list of `Piece`: bytes that all rows share, such as a tag, and columns of numbers. A
column is written as varints of one width, that of its largest number: shorter ones are filled up with zero
groups, which the format allows and every decoder reads. So all rows are equally long, the lengths of nested
messages are known beforehand, and a column costs two NumPy operations a byte, whatever is in it. Rows with
other fields are other `records`; `weave` puts the rows of several into one order.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

VARINT: Final = 0
FIXED64: Final = 1
LENGTH_DELIMITED: Final = 2

Records = npt.NDArray[np.uint8]
"""Messages as a matrix: one in each row, all of one length."""

Block = tuple[npt.NDArray[Any], Records]
"""Records, and the place of each in an order: ascending, no two at one place."""


@dataclass(frozen=True)
class Varints:
    """A column of numbers < 2^64 as varints of `width` bytes each."""

    values: npt.NDArray[np.uint64]
    width: int

    def __len__(self) -> int:
        return self.width


Piece = bytes | Varints


@functools.cache
def tag(number: int, wire_type: int) -> bytes:
    """The key of a field."""
    return encode_varint(number << 3 | wire_type)


def encode_varint(value: int) -> bytes:
    """One number ≥ 0 as a varint of as few bytes as it needs."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(values: npt.ArrayLike) -> Varints:
    """A column of integers; a negative one takes ten bytes, as int64 does, and so do then all others."""
    unsigned: npt.NDArray[np.uint64] = np.asarray(values).astype(np.uint64)
    return Varints(unsigned, len(encode_varint(int(unsigned.max(initial=0)))))


def varint_field(number: int, values: npt.ArrayLike | int) -> list[Piece]:
    """The pieces of an integer, enum or bool field; one number stands for all rows."""
    key = tag(number, VARINT)
    if isinstance(values, int):
        return [key + encode_varint(values)]
    return [key, varint(values)]


def message_field(number: int, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces of a field that holds a message of these pieces: its key, its length, and they."""
    pieces = list(pieces)
    return [tag(number, LENGTH_DELIMITED) + encode_varint(sum(map(len, pieces))), *pieces]


def records(rows: int, pieces: Sequence[Piece]) -> Records:
    """The messages of all rows."""
    template = b"".join(piece if isinstance(piece, bytes) else bytes(len(piece)) for piece in pieces)
    matrix = np.empty((rows, len(template)), np.uint8)
    matrix[:] = np.frombuffer(template, np.uint8)
    place = 0
    for piece in pieces:
        end = place + len(piece)
        if isinstance(piece, Varints):
            _write(piece, matrix[:, place:end])
        place = end
    return matrix


def filled(template: bytes, places: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> Records:
    """The template once for each row of `values`, with its eight-byte numbers written into it.

    For rows of fixed64 fields only, in which all else repeats: one operation writes all of them.

    Args:
        template: a message, or the messages of a repeated field.
        places: where each number goes: the first of its eight bytes.
        values: of eight bytes each: a row for each message, a column for each place.
    """
    matrix = np.empty((len(values), len(template)), np.uint8)
    matrix[:] = np.frombuffer(template, np.uint8)
    columns = (places[:, np.newaxis] + np.arange(8)).ravel()
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    matrix[:, columns] = little.view(np.uint8).reshape(len(values), len(columns))
    return matrix


def weave(length: int, blocks: Iterable[Block]) -> bytes:
    """The records of all blocks by their places, which are < `length`; at one place, in the blocks' order."""
    blocks = list(blocks)
    taken = np.zeros(length, np.int64)
    before = []
    for at, matrix in blocks:
        before.append(taken[at])
        taken[at] += matrix.shape[1]
    start = np.cumsum(taken) - taken
    woven = np.empty(int(taken.sum()), np.uint8)
    for (at, matrix), offset in zip(blocks, before, strict=True):
        if len(at):
            width = matrix.shape[1]
            anywhere: npt.NDArray[Any] = np.ndarray(
                (len(woven) - width + 1,), f"V{width}", woven.data, strides=(1,)
            )
            anywhere[start[at] + offset] = matrix.view(f"V{width}")[:, 0]
    return woven.tobytes()


def _write(column: Varints, target: Records) -> None:
    """Seven bits a byte, the low ones first; the highest bit says that more follow."""
    rest = column.values.astype("<u8", copy=column.width > 1)
    for place in range(column.width - 1):
        np.bitwise_or(rest.view(np.uint8)[::8], 0x80, out=target[:, place])
        rest >>= np.uint64(7)
    target[:, -1] = rest.view(np.uint8)[::8]
