"""Where an exporter's bytes go, as a value."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from memexport.errors import OutputError


@dataclass
class FileDestination:
    """A file to be written.

    Attributes:
        path: where it ends up.
        overwrite: replace a file that is there already; else that is an `OutputError`.
        atomic: write beside it and put it in place only when complete, so that a failure leaves what was
            there before. A live recording is written in place instead: what was written survives a crash.
    """

    path: Path
    overwrite: bool = False
    atomic: bool = True
    written_bytes: int = field(default=0, init=False)
    _stream: BinaryIO | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.path = Path(self.path)

    @property
    def _working_path(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.part") if self.atomic else self.path

    def open(self) -> None:
        """Open it for writing.

        Raises:
            OutputError: it exists and may not be replaced, or cannot be created.
        """
        if not self.overwrite and self.path.exists():
            raise OutputError(self.path, None, "exists already", hint="--force replaces it")
        try:
            self._stream = self._working_path.open("wb")
        except OSError as error:
            raise OutputError(self.path, None, _reason(error)) from error

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes and hand them to the operating system.

        Raises:
            OutputError: they cannot be written.
        """
        stream = self._opened()
        try:
            stream.write(data)
            stream.flush()
        except OSError as error:
            raise OutputError(self.path, f"byte {self.written_bytes}", _reason(error)) from error
        self.written_bytes += len(data)

    def commit(self) -> None:
        """Close it; the file is complete and in its place.

        Raises:
            OutputError: the last bytes cannot be written, or the file cannot be put in its place.
        """
        stream, self._stream = self._opened(), None
        try:
            stream.close()
            if self.atomic:
                self._working_path.replace(self.path)
        except OSError as error:
            raise OutputError(self.path, None, _reason(error)) from error

    def discard(self) -> None:
        """Close it; at `path` is what was there before `open`, but a file written in place stays as it is."""
        if self._stream is None:
            return
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError):
            stream.close()
        if self.atomic:
            with contextlib.suppress(OSError):
                self._working_path.unlink()

    def _opened(self) -> BinaryIO:
        if self._stream is None:
            raise OutputError(self.path, None, "is not open")
        return self._stream


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
