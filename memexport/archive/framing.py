"""Records of an archive: how one is framed, checked, and found again behind damage.

Sizes, offsets and counts are in bytes. The layout is in schemas/memexport/archive/v1/archive.proto.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from memexport.errors import InputError

# As in PNG: the high bit, the line ends and the end-of-file character show a transfer as text. Read as the
# little-endian integer that Record.sync is, this is 0x1a0a0d584d454d89.
SYNC: Final = b"\x89MEMX\r\n\x1a"
FRAME_BYTES: Final = 20
MAX_BODY_BYTES: Final = 2**31 - 64
"""No protobuf message may reach 2 GiB."""

_SYNC_OFFSET: Final = 7
_CHECKED_BYTES: Final = FRAME_BYTES - 6
"""What the length counts besides the body: the fields sync and crc32."""
_WINDOW_BYTES: Final = 1 << 20
_MAX_REREADS: Final = 64
"""A file made of nothing but false starts must not take for ever: so often may each byte be checked."""


def pack_record(body: bytes) -> bytes:
    """A whole record around the body: the fields of a serialized `Record` except sync and crc32.

    Raises:
        ValueError: the body is too long for any reader.
    """
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"a record of {len(body)} bytes is too long")
    length = len(body) + _CHECKED_BYTES
    # Five bytes whatever the length, so that the start of a record is known from where its sync is.
    varint = bytes([length >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)] + [length >> 28])
    return b"".join((b"\x0a", varint, b"\x09", SYNC, b"\x15", zlib.crc32(body).to_bytes(4, "little"), body))


def begins_archive(head: bytes) -> bool:
    """Whether a file that begins with these bytes is an archive, though its first bytes may be damaged."""
    return SYNC in head


@dataclass(frozen=True)
class Frame:
    """An intact record.

    Attributes:
        offset: the byte of the file at which it begins.
        body: its bytes after sync and crc32; their checksum is right.
    """

    offset: int
    body: bytes


@dataclass
class RecordReader:
    """Every intact record of a file, in order; what lies between them is counted.

    The file may be read by several of these at a time through one unbuffered stream. What is appended
    after construction is not read.

    Attributes:
        offset: how far the file has been read.
        lost_bytes: those that belong to no intact record.
        gaps: how many stretches of lost bytes there are.
        first_gap: where the first of them begins, or None.

    Raises:
        InputError: while iterating: the file cannot be read, or has become shorter.
    """

    path: Path
    stream: BinaryIO
    size: int
    offset: int = 0
    lost_bytes: int = 0
    gaps: int = 0
    first_gap: int | None = None
    _checked_bytes: int = 0

    def __iter__(self) -> Iterator[Frame]:
        while self.offset < self.size:
            frame = self._frame_at(self.offset) or self._next_frame_after(self.offset)
            if frame is None:
                break
            self.offset = frame.offset + FRAME_BYTES + len(frame.body)
            yield frame

    def _next_frame_after(self, damaged: int) -> Frame | None:
        """Step over damage; the next intact record, or None at the end of the file."""
        frame = next(filter(None, map(self._frame_at, self._candidates(damaged + 1))), None)
        end = frame.offset if frame else self.size
        self.lost_bytes += end - damaged
        self.gaps += 1
        self.first_gap = damaged if self.first_gap is None else self.first_gap
        self.offset = end
        return frame

    def _candidates(self, start: int) -> Iterator[int]:
        """Where records may begin, from `start` on: wherever the sync bytes stand."""
        while start + FRAME_BYTES <= self.size:
            window = self._read(start, min(_WINDOW_BYTES, self.size - start))
            found = window.find(SYNC)
            while found >= 0:
                if found >= _SYNC_OFFSET:
                    yield start + found - _SYNC_OFFSET
                found = window.find(SYNC, found + 1)
            # The next window repeats as much of this one as a sync cut by its end may need.
            start += max(len(window) - FRAME_BYTES, 1)

    def _frame_at(self, offset: int) -> Frame | None:
        """The record that begins there, or None if none does or it is damaged."""
        if offset + FRAME_BYTES > self.size:
            return None
        frame = self._read(offset, FRAME_BYTES)
        length = _body_length(frame)
        if length is None or offset + FRAME_BYTES + length > self.size:
            return None
        body = self._read(offset + FRAME_BYTES, length)
        if zlib.crc32(body) == int.from_bytes(frame[16:], "little"):
            return Frame(offset, body)
        self._checked_bytes += length
        if self._checked_bytes > _MAX_REREADS * self.size:
            raise InputError(self.path, f"byte {offset}", "the file is damaged beyond recovery")
        return None

    def _read(self, offset: int, length: int) -> bytes:
        try:
            self.stream.seek(offset)
            data = self.stream.read(length)
        except (OSError, ValueError) as error:  # ValueError: the source was closed during a pass
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(self.path, f"byte {offset}", reason) from error
        if len(data) != length:
            raise InputError(self.path, f"byte {offset}", "the file became shorter while it was read")
        return data


def _body_length(frame: bytes) -> int | None:
    """How long the body behind these `FRAME_BYTES` says it is; None if they are not the start of a record."""
    tags = frame[0] == 0x0A and frame[6] == 0x09 and frame[7:15] == SYNC and frame[15] == 0x15
    if not tags or frame[5] > 7 or min(frame[1:5]) < 0x80:
        return None
    length = sum((frame[1 + i] & 0x7F) << 7 * i for i in range(5)) - _CHECKED_BYTES
    return length if 0 <= length <= MAX_BODY_BYTES else None
