"""A recording that is not a local file: read from a temporary copy, under the name that it came by."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from memexport.errors import InputError
from memexport.model import EventBatch, RecordingEnd
from memexport.sources import Source


class CopiedSource:
    """Reads from a copy. Closing it removes the copy, as does forgetting it."""

    def __init__(self, source: Source, copy: Path, name: str) -> None:
        self._source = source
        self._copy, self._name = copy, name
        self.info, self.tables = source.info, source.tables
        self._remove = weakref.finalize(self, copy.unlink, missing_ok=True)

    @staticmethod
    def sniff(head: bytes) -> bool:  # noqa: ARG004 - a Source's interface
        """No file is one."""
        return False

    def batches(self) -> Iterator[EventBatch]:
        """Every event, in order; see the source.

        Raises:
            InputError: see the source; it names the original.
        """
        with naming(self._copy, self._name):
            yield from self._source.batches()

    def end(self) -> RecordingEnd:
        """Warnings and totals."""
        return self._source.end()

    @property
    def fraction_read(self) -> float | None:
        """How much of the copy the running pass has read."""
        return self._source.fraction_read

    def close(self) -> None:
        """Give the copy back and remove it. Calling it twice does nothing."""
        self._source.close()
        self._remove()


@contextlib.contextmanager
def naming(copy: Path, name: str) -> Iterator[None]:
    """What goes wrong with the copy is said of the original."""
    try:
        yield
    except InputError as error:
        if error.path != os.fspath(copy):
            raise
        raise InputError(name, error.where, error.what, error.hint) from error


def copy_of(name: str, fill: Callable[[BinaryIO], None]) -> Path:
    """A temporary file with what `fill` writes into it; sources need to seek, and read several times.

    Raises:
        InputError: what is called `name` cannot be copied. Nothing is left of the file then.
    """
    handle, path = tempfile.mkstemp(prefix="memexport-")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
    except BaseException as error:
        Path(path).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(name, None, f"cannot be copied: {error.strerror or error}") from error
        raise
    return Path(path)
