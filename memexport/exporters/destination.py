"""Where an exporter's bytes go, as a value."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import BinaryIO, Protocol

from memexport.errors import OutputError
from memexport.exporters import _file_lock


class Destination(Protocol):
    """What an exporter needs of where its bytes go: they are appended, then committed or discarded."""

    @property
    def path(self) -> PurePath:
        """What it is called; a name that ends in ".gz" asks for compression."""
        ...

    @property
    def written_bytes(self) -> int:
        """How many bytes were written so far."""
        ...

    def open(self) -> None:
        """Open it for writing.

        Raises:
            OutputError: it exists and may not be replaced, or cannot be created.
        """
        ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes.

        Raises:
            OutputError: they cannot be written.
        """
        ...

    def commit(self) -> None:
        """Close it; everything is written and in its place.

        Raises:
            OutputError: it is not.
        """
        ...

    def discard(self) -> None:
        """Close it, and leave as little as possible of what was written. Raises nothing."""
        ...


@dataclass
class FileDestination:
    """A file to be written.

    Attributes:
        path: where it ends up.
        overwrite: replace a file that is there already; else that is an `OutputError`.
        atomic: write beside it and put it in place only when complete, so that a failure leaves what was
            there before. A live recording is written in place instead: what was written survives a crash.
            Only one writer at a time can have such a file, and if it is removed meanwhile, `commit` puts it
            back.
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
            OutputError: it exists and may not be replaced, is being written by another, or cannot be created.
        """
        if not self.overwrite and self.path.exists():
            raise OutputError(self.path, None, "exists already", hint="--force replaces it")
        try:
            self._stream = self._working_path.open("wb") if self.atomic else self._opened_alone()
        except OSError as error:
            folder = self.path.parent
            hint = None if folder.exists() else f"mkdir -p {folder}"
            raise OutputError(self.path, None, _reason(error), hint=hint) from error

    def _opened_alone(self) -> BinaryIO:
        """The file, locked before it is emptied: two writers would leave one file that nobody can read."""
        if self.path.exists() and not self.path.is_file():  # a pipe or a device
            return self.path.open("wb")
        stream = self.path.open("a+b")
        if not _file_lock.take(stream):
            stream.close()
            hint = "give each recording a file of its own"
            raise OutputError(self.path, None, "is being written by another recording", hint=hint)
        stream.truncate(0)
        return stream

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

    def read(self, offset: int, length: int) -> bytes:
        """Bytes that were written; only of a file that is written in place.

        Raises:
            OutputError: they cannot be read.
        """
        stream = self._opened()
        try:
            stream.seek(offset)
            data = stream.read(length)
            stream.seek(0, os.SEEK_END)
        except OSError as error:
            raise OutputError(self.path, f"byte {offset}", _reason(error)) from error
        if len(data) != length:
            raise OutputError(self.path, f"byte {offset}", "what was written there is gone")
        return data

    def rewrite(self, pieces: Iterable[bytes]) -> None:
        """Let the file hold these instead, at once: at every moment there is the old one or the new one.

        Raises:
            OutputError: there is no room beside it, or the file cannot be put in its place.
        """
        beside = self.path.with_name(f".{self.path.name}.new")
        try:
            fresh = beside.open("w+b")
            _file_lock.take(fresh)
            size = sum(fresh.write(piece) for piece in pieces)
            fresh.flush()
            os.fsync(fresh)
            beside.replace(self._working_path)
        except (OSError, OutputError) as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            reason = error.what if isinstance(error, OutputError) else _reason(error)
            raise OutputError(self.path, None, reason) from error
        self._opened().close()
        self._stream, self.written_bytes = fresh, size

    def commit(self) -> None:
        """Close it; the file is complete and in its place.

        Raises:
            OutputError: the last bytes cannot be written, or the file cannot be put in its place.
        """
        stream, self._stream = self._opened(), None
        try:
            if not self.atomic:
                self._put_back(stream)
            _file_lock.give_back(stream)
            stream.close()
            if self.atomic:
                self._working_path.replace(self.path)
        except OSError as error:
            raise OutputError(self.path, None, _reason(error)) from error

    def _put_back(self, stream: BinaryIO) -> None:
        """If the file was removed while it was written, write it again."""
        if self.path.exists():
            return
        stream.seek(0)
        with self.path.open("xb") as copy:
            shutil.copyfileobj(stream, copy)

    def discard(self) -> None:
        """Close it; at `path` is what was there before `open`, but a file written in place stays as it is."""
        if self._stream is None:
            return
        stream, self._stream = self._stream, None
        with contextlib.suppress(OSError):
            _file_lock.give_back(stream)
            stream.close()
        if self.atomic:
            with contextlib.suppress(OSError):
                self._working_path.unlink()

    def _opened(self) -> BinaryIO:
        if self._stream is None:
            raise OutputError(self.path, None, "is not open")
        return self._stream


@dataclass
class StreamDestination:
    """A stream that someone else opened and will close, like stdout.

    What was written cannot be taken back. A `BrokenPipeError` goes through: nobody reads on, which is for the
    program to decide about.

    Attributes:
        stream: takes bytes.
        path: its name, for messages.
    """

    stream: BinaryIO
    path: PurePath = field(init=False)
    written_bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.path = PurePath(str(getattr(self.stream, "name", "stream")))

    def open(self) -> None:
        """Do nothing: it is open."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes and hand them on.

        Raises:
            OutputError: they cannot be written.
        """
        try:
            self.stream.write(data)
            self.stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(self.path, f"byte {self.written_bytes}", _reason(error)) from error
        self.written_bytes += len(data)

    def commit(self) -> None:
        """Do nothing: every write was handed on."""

    def discard(self) -> None:
        """Do nothing: what was written is out."""


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
