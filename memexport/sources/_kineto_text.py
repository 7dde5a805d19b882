"""The text of a trace file, plain or gzip, in blocks: memory is bounded, whatever the file says.

`zlib` is used directly: unlike `gzip`, it says where damaged data lies, and hands out what came before a cut.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from memexport.errors import InputError

BLOCK_BYTES: Final = 4 * 2**20
"""The most text that is handed out at once."""

MAX_RATIO: Final = 300
"""A real trace unpacks to 20 to 60 times its size; gzip can do 1032."""

_SUSPICIOUS_BYTES: Final = 16 * 2**20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # zlib's way to say: gzip's header, the largest window
_PACKED_BYTES: Final = 2**18
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def first_text(head: bytes) -> bytes:
    """The text that a file with these first bytes begins with; empty if they are damaged gzip."""
    if head.startswith(_GZIP_MAGIC):
        try:
            head = zlib.decompressobj(_GZIP_WINDOW).decompress(head, len(head))
        except zlib.error:
            return b""
    return head.removeprefix(_BYTE_ORDER_MARK)


class TextFile:
    """A file, opened; `blocks` reads it once.

    Attributes:
        path: the file.
        is_gzip: whether it is packed; positions are those of the unpacked text.
        is_cut: whether the packed data ended before their end mark. Known once `blocks` is exhausted.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.is_cut = False
        try:
            self._stream: BinaryIO = self.path.open("rb")
            self.is_gzip = self._stream.read(2) == _GZIP_MAGIC
            self._stream.seek(0)
        except OSError as error:
            raise self._unreadable(error) from error

    def blocks(self) -> Iterator[bytes]:
        """The text, in blocks of at most `BLOCK_BYTES`, none of them empty.

        Raises:
            InputError: it cannot be read, is damaged gzip, or unpacks to far more than any trace does.
        """
        first = True
        for block in self._unpacked() if self.is_gzip else self._read(BLOCK_BYTES):
            if first:
                block = block.removeprefix(_BYTE_ORDER_MARK)
                first = False
            if block:
                yield block

    @property
    def fraction_read(self) -> float:
        """How much of the file was read, 0 to 1."""
        return min(1.0, self._stream.tell() / max(1, os.fstat(self._stream.fileno()).st_size))

    def close(self) -> None:
        """Give the file back. Calling it twice does nothing."""
        self._stream.close()

    def _read(self, size: int) -> Iterator[bytes]:
        try:
            while block := self._stream.read(size):
                yield block
        except OSError as error:
            raise self._unreadable(error) from error

    def _unpacked(self) -> Iterator[bytes]:
        decoder, done, unpacked = zlib.decompressobj(_GZIP_WINDOW), 0, 0
        for packed in self._read(_PACKED_BYTES):
            done += len(packed)
            if decoder.eof:
                packed = decoder.unused_data + packed
                decoder = zlib.decompressobj(_GZIP_WINDOW)
            while True:
                block = self._unpack(decoder, packed, done)
                unpacked += len(block)
                if unpacked > max(_SUSPICIOUS_BYTES, MAX_RATIO * done):
                    raise InputError(self.path, None, f"unpacks to more than {MAX_RATIO} times its size")
                yield block
                packed = decoder.unconsumed_tail
                if decoder.eof and decoder.unused_data.startswith(_GZIP_MAGIC):
                    # Another member: files may be joined. Anything else after the end mark is no text.
                    packed = decoder.unused_data
                    decoder = zlib.decompressobj(_GZIP_WINDOW)
                elif decoder.eof or (not packed and len(block) < BLOCK_BYTES):
                    break
            if decoder.eof:
                break
        self.is_cut = not decoder.eof

    def _unpack(self, decoder: zlib._Decompress, packed: bytes, done: int) -> bytes:
        try:
            return decoder.decompress(packed, BLOCK_BYTES)
        except zlib.error as error:
            raise InputError(
                self.path, f"byte {done - len(packed)} or later", f"the gzip data is damaged: {error}"
            ) from error

    def _unreadable(self, error: OSError) -> InputError:
        return InputError(self.path, None, error.strerror or str(error))
