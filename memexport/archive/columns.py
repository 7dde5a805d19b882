"""One column of a batch as bytes, and back: the encodings that schemas/…/archive.proto defines.

All arithmetic is on unsigned integers of the column's size, where it wraps: every value has an encoding, also
the least and the greatest, and every byte sequence decodes to some value without an overflow.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import zstandard

from memexport.archive.v1 import archive_pb2 as pb
from memexport.model import COLUMNS, NULLS, Column, EventBatch, EventKind

# Measured on tools/bench/synthetic.py, 4.9 bytes an event: level 3 saves 1 % and takes a fifth longer. Planes
# of bytes save 3 % over whole integers and take half the time; dictionaries save a quarter.
_COMPRESSION_LEVEL: Final = 1

# These repeat a few values: sizes of tensors, addresses of the allocator's blocks.
_REPEATING: Final = frozenset({"size_bytes", "address"})

_DEPENDENT: Final = ("time_unix_ns", "allocated_bytes", "active_bytes")
DECODING_ORDER: Final = (*(name for name in COLUMNS if name not in _DEPENDENT), *_DEPENDENT)
"""Every column, after those that its encoding refers to."""


class CodecError(Exception):
    """A record is intact but what it holds is not an archive's: it says what is wrong."""


def column_id(name: str) -> pb.ColumnId:
    """The number that the schema gives to a column of `EventBatch`."""
    number: pb.ColumnId = getattr(pb, f"COLUMN_ID_{name.upper()}")
    return number


class ColumnEncoder:
    """Encodes columns; not for several threads at a time."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)

    def encode(self, name: str, batch: EventBatch) -> pb.Column | None:
        """The batch's column of that name, or None if it is null throughout. The batch is not empty."""
        column: Column = getattr(batch, name)
        if _is_constant(column):
            value = int(column[0])
            return None if value == NULLS[name] else self._constant(name, value)
        match name:
            case "time_unix_ns":
                ends = _unsigned(column) + _lasting(batch.duration_ns)
                return self._running(name, pb.ENCODING_END_TIME, ends)
            case "reserved_bytes":
                return self._running(name, pb.ENCODING_DELTA, _unsigned(column))
            case "allocated_bytes":
                unexplained = _unsigned(column) - np.cumsum(_moved(batch.kind, batch.size_bytes))
                return self._running(name, pb.ENCODING_LEVEL, unexplained)
            case "active_bytes":
                above = _unsigned(column) - _unsigned(batch.allocated_bytes)
                return self._column(name, pb.ENCODING_ABOVE_ALLOCATED, above)
            case _ if name in _REPEATING:
                return self._dictionary(name, column)
        return self._column(name, pb.ENCODING_PLAIN, _unsigned(column))

    def _constant(self, name: str, value: int) -> pb.Column:
        base = value - 2**64 if value >= 2**63 else value
        return pb.Column(id=column_id(name), encoding=pb.ENCODING_PLAIN, values=pb.Packed(base=base))

    def _column(self, name: str, encoding: pb.Encoding, values: Column) -> pb.Column:
        return pb.Column(id=column_id(name), encoding=encoding, values=self._pack(values))

    def _running(self, name: str, encoding: pb.Encoding, values: Column) -> pb.Column:
        """What each value differs from the one before it; the first one, from `start`, not at all."""
        column = self._column(name, encoding, np.diff(values, prepend=values[:1]))
        column.start = int(_signed(values)[0])
        return column

    def _dictionary(self, name: str, column: Column) -> pb.Column:
        distinct, positions = np.unique(column, return_inverse=True)
        if 2 * len(distinct) > len(column):
            return self._column(name, pb.ENCODING_PLAIN, _unsigned(column))
        encoded = self._column(name, pb.ENCODING_DICTIONARY, positions.astype(np.uint32))
        differences = np.diff(_unsigned(distinct), prepend=np.uint64(0))
        encoded.dictionary.CopyFrom(self._pack(differences))
        encoded.dictionary_count = len(distinct)
        return encoded

    def _pack(self, values: Column) -> pb.Packed:
        """Unsigned integers, taken as signed ones, so that a small step down is a small number too."""
        signed = _signed(values)
        base, top = int(signed.min()), int(signed.max())
        width = ((top - base).bit_length() + 7) // 8
        if not width:
            return pb.Packed(base=base)
        above = values - signed.dtype.type(base).view(values.dtype)
        octets = above.astype(above.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        planes = octets.reshape(len(values), -1)[:, :width].T.tobytes()
        return pb.Packed(base=base, width_bytes=width, planes=self._compressor.compress(planes))


class ColumnDecoder:
    """Decodes columns; not for several threads at a time."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor()

    def decode(self, name: str, message: pb.Column, count: int, decoded: dict[str, Column]) -> Column:
        """A column of `count` values; `decoded` holds those before it in `DECODING_ORDER`.

        Raises:
            CodecError: it is not what the schema says.
        """
        dtype = COLUMNS[name]
        unsigned = np.dtype(f"u{dtype.itemsize}")
        if message.encoding == pb.ENCODING_DICTIONARY:
            return self._from_dictionary(message, count, unsigned).view(dtype)
        values = self._unpack(message.values, count, unsigned)
        match message.encoding:
            case pb.ENCODING_PLAIN:
                return values.view(dtype)
            case pb.ENCODING_DELTA:
                return _summed(values, message.start).view(dtype)
            case pb.ENCODING_END_TIME if name == "time_unix_ns":
                ends = _summed(values, message.start)
                return (ends - _lasting(decoded["duration_ns"])).view(dtype)
            case pb.ENCODING_LEVEL if name == "allocated_bytes":
                moved = _moved(decoded["kind"], decoded["size_bytes"])
                return _summed(values + moved, message.start).view(dtype)
            case pb.ENCODING_ABOVE_ALLOCATED if name == "active_bytes":
                return (values + _unsigned(decoded["allocated_bytes"])).view(dtype)
        raise CodecError(f"column {name} is in encoding {message.encoding}, which this memexport cannot read")

    def _from_dictionary(self, message: pb.Column, count: int, unsigned: np.dtype[Any]) -> Column:
        if not 0 < message.dictionary_count <= count:
            raise CodecError(f"a dictionary of {message.dictionary_count} values for {count} events")
        differences = self._unpack(message.dictionary, message.dictionary_count, unsigned)
        positions = self._unpack(message.values, count, np.dtype(np.uint32))
        if int(positions.max()) >= message.dictionary_count:
            raise CodecError("a position beyond the end of a dictionary")
        distinct: Column = np.cumsum(differences, dtype=unsigned)
        return distinct[positions]

    def _unpack(self, packed: pb.Packed, count: int, unsigned: np.dtype[Any]) -> Column:
        """`count` unsigned integers; a constant takes no memory."""
        width = packed.width_bytes
        base = np.int64(packed.base).astype(unsigned)
        if not width:
            return np.broadcast_to(base, count)
        if width > unsigned.itemsize:
            raise CodecError(f"{width} bytes for each value of {unsigned.itemsize}")
        planes = np.frombuffer(self._decompress(packed.planes, width * count), np.uint8).reshape(width, count)
        little_endian = unsigned.newbyteorder("<")
        octets = np.zeros((count, unsigned.itemsize), np.uint8)
        for position, plane in enumerate(planes):
            octets[:, position] = plane
        values = octets.reshape(-1).view(little_endian).astype(unsigned, copy=False)
        values += base
        return values

    def _decompress(self, frame: bytes, size: int) -> bytes:
        """Exactly `size` bytes. What the frame says of its size is checked before memory is taken for it."""
        try:
            if zstandard.frame_content_size(frame) != size:
                raise CodecError(f"compressed values of another size than {size} bytes")
            data: bytes = self._decompressor.decompress(frame, max_output_size=size)
        except zstandard.ZstdError as error:
            raise CodecError(f"compressed values: {error}") from error
        return data


def _is_constant(column: Column) -> bool:
    return column.strides == (0,) or bool(column[0] == column[-1] and (column == column[0]).all())


def _unsigned(column: Column) -> Column:
    return column.view(f"u{column.dtype.itemsize}")


def _signed(column: Column) -> Column:
    return column.view(f"i{column.dtype.itemsize}")


def _lasting(durations: Column) -> Column:
    """The durations as what they add to the time at which an event ended: null and negative ones nothing."""
    return _unsigned(np.maximum(durations, 0))


def _moved(kinds: Column, sizes: Column) -> Column:
    """What each event adds to the allocated bytes, as its size says."""
    signs = (kinds == EventKind.ALLOCATION).view(np.int8) - (kinds == EventKind.RELEASE).view(np.int8)
    return _unsigned(sizes * signs)


def _summed(differences: Column, start: int) -> Column:
    """Running sums, from `start` on."""
    sums: Column = np.cumsum(differences, dtype=differences.dtype)
    sums += np.int64(start).astype(differences.dtype)
    return sums
