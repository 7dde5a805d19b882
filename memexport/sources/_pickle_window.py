"""The bytes of a pickle, some MiB at a time, without its frames."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import BinaryIO, Final

_FRAME: Final = 0x95
_HEADER: Final = struct.Struct("<BQ")


class Window:
    """A part of a stream, that moves forward only. It says at each move which fraction is read.

    A pickle of protocol 4 or 5 comes in frames of 64 KiB, whose headers may stand between any two of its
    operations. They only announce lengths, so they are taken out where one frame follows another.

    Attributes:
        data: the bytes at hand.
        at: the next one to be read, as an index into `data`.
        base: how many bytes came before `data`, without headers.
    """

    __slots__ = (
        *("_header", "_headers", "_progress", "_raw", "_size", "_stream", "_window_bytes"),
        *("at", "base", "data"),
    )

    def __init__(
        self,
        stream: BinaryIO,
        size: int,
        window_bytes: int,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._progress = progress
        self._stream = stream
        self._window_bytes = window_bytes
        self._size = size
        self._raw = 0
        self._header = 2
        self._headers = array("Q")
        self.data = b""
        self.at = self.base = 0
        self.refill(0)

    def position(self, logical: int) -> int:
        """Where in the stream the byte is that has so many before it without headers."""
        return logical + _HEADER.size * bisect_right(self._headers, logical)

    @property
    def left(self) -> int:
        """How many bytes the stream has from here on, at most."""
        return len(self.data) - self.at + self._size - self._raw

    @property
    def is_last(self) -> bool:
        """Whether nothing comes after `data`."""
        return self._raw >= self._size

    def refill(self, wanted: int) -> None:
        """Drop what was read, and have at least `wanted` bytes at hand if the stream has that many."""
        if self.is_last:
            return
        parts = [self.data[self.at :]]
        self.base += self.at
        self.at = 0
        have = len(parts[0])
        wanted = max(self._window_bytes, wanted)
        while have < wanted and not self.is_last:
            part = self._next(wanted - have, self.base + have)
            parts.append(part)
            have += len(part)
        self.data = b"".join(parts)
        if self._progress is not None:
            self._progress(1.0 if self.is_last else self._raw / self._size)

    def _next(self, most: int, logical: int) -> bytes:
        """The next bytes up to a header, without it."""
        if self._raw != self._header:
            return self._read(min(most, self._header - self._raw) if self._header > self._raw else most)
        header = self._read(_HEADER.size)
        if len(header) == _HEADER.size:
            code, length = _HEADER.unpack(header)
            # One that is no header, or announces too much, is left for the machine to find.
            if code == _FRAME and length <= self._size - self._raw:
                self._headers.append(logical)
                self._header = self._raw + length
                return b""
        return header

    def _read(self, most: int) -> bytes:
        """At most so many bytes. A stream that is shorter than it said gets its true size."""
        read = self._stream.read(min(most, self._size - self._raw))
        self._raw += len(read)
        if not read:
            self._size = self._raw
        return read

    def framed(self, length: int) -> None:
        """A frame of this length begins here: the next header comes after it, if that was not read yet."""
        end = self.position(self.base + self.at) + length
        if end >= self._raw:
            self._header = end

    def take(self, length: int) -> bytes:
        """The next bytes. The caller has checked that they are `left`, which bounds what this allocates.

        Raises:
            IndexError: the stream is shorter than it said.
        """
        if length > len(self.data) - self.at:
            self.refill(length)
        taken = self.data[self.at : self.at + length]
        if len(taken) < length:
            raise IndexError
        self.at += length
        return taken
