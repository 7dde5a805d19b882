"""Protobuf wire encoding of many small messages at once, from columns.

A message kind is a list of `Piece`: runs of bytes that every row has in the same place, such as a tag or a
varint. Each piece holds its bytes as planes: plane k is byte k of all rows, so that a varint of a whole
column costs a few NumPy operations a byte. `join` lays the planes side by side in a (rows × width) matrix and
keeps the bytes that each row really has. The result is canonical: byte for byte what `SerializeToString`
gives for the same messages, given that the pieces come in the order of their field numbers.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

VARINT: Final = 0
LENGTH_DELIMITED: Final = 2

Plane = npt.NDArray[np.uint8] | int
Mask = npt.NDArray[np.bool_] | bool


@dataclass(frozen=True)
class Piece:
    """Some bytes of every row.

    Attributes:
        planes: byte k of each row, as an array, or as one number where all rows share it.
        masks: whether the row has byte k.
        lengths: how many of the bytes each row has.
    """

    planes: Sequence[Plane]
    masks: Sequence[Mask]
    lengths: npt.NDArray[np.uint32] | int

    def where(self, present: npt.NDArray[np.bool_]) -> Piece:
        """The same bytes, but only in the rows that `present` names."""
        masks = [present if mask is True else mask & present for mask in self.masks]
        return Piece(self.planes, masks, np.multiply(present, self.lengths, dtype=np.uint32))


def literal(data: bytes) -> Piece:
    """The same bytes in every row."""
    return Piece(tuple(data), (True,) * len(data), len(data))


def tag(number: int, wire_type: int) -> bytes:
    """The key of a field."""
    return encode_varint(number << 3 | wire_type)


def encode_varint(value: int) -> bytes:
    """One number ≥ 0 as a varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(values: npt.ArrayLike) -> Piece:
    """Each row's integer as a varint of exactly the bytes it needs; negative ones take ten, as int64 does."""
    rest: npt.NDArray[Any] = np.asarray(values).astype(np.uint64)
    highest = int(rest.max(initial=0))
    if highest < 2**32:
        rest = rest.astype(np.uint32)  # half the memory to go through, for nearly every column
    planes: list[Plane] = []
    masks: list[Mask] = [True]
    lengths = np.ones(len(rest), np.uint32)
    while highest > 0x7F:
        low = rest.astype(np.uint8)
        rest = rest >> 7
        more = rest != 0
        planes.append(low & 0x7F | more.view(np.uint8) << 7)
        masks.append(more)
        lengths += more
        highest >>= 7
    planes.append(rest.astype(np.uint8))
    return Piece(planes, masks, lengths)


def varint_field(number: int, values: npt.ArrayLike | int) -> list[Piece]:
    """The pieces of an integer, enum or bool field; one number stands for all rows."""
    key = tag(number, VARINT)
    if isinstance(values, int):
        return [literal(key + encode_varint(values))]
    return [literal(key), varint(values)]


def message_field(number: int, pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces of a field that holds a message of these pieces: its key, its length, and they."""
    pieces = list(pieces)
    length = sum((piece.lengths for piece in pieces), 0)
    key = tag(number, LENGTH_DELIMITED)
    if isinstance(length, int):
        return [literal(key + encode_varint(length)), *pieces]
    return [literal(key), varint(length), *pieces]


def optional(present: npt.NDArray[np.bool_], pieces: Iterable[Piece]) -> list[Piece]:
    """The same pieces, but only in the rows that `present` names."""
    if present.all():
        return list(pieces)
    return [piece.where(present) for piece in pieces] if present.any() else []


def join(rows: int, pieces: Sequence[Piece]) -> bytes:
    """The bytes of all rows, one row after the other."""
    width = sum(len(piece.planes) for piece in pieces)
    matrix = np.empty((rows, width), np.uint8)
    kept = np.empty((rows, width), np.bool_)
    column = 0
    for piece in pieces:
        for plane, mask in zip(piece.planes, piece.masks, strict=True):
            matrix[:, column] = plane
            kept[:, column] = mask
            column += 1
    return matrix[kept].tobytes()
