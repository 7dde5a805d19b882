"""Where an exporter's bytes go that are to end up behind a URL."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from memexport import remote
from memexport.errors import MemexportError, OutputError
from memexport.exporters.destination import FileDestination

_PREFIX: Final = "memexport-"


@dataclass
class RemoteDestination:
    """A file behind a URL: written to a temporary file here, uploaded when complete.

    Attributes:
        url: where it ends up.
        overwrite: replace a file that is there already; else that is an `OutputError`.
        atomic: a failure leaves nothing here either. A live recording cannot be made again: of that, what was
            written stays in the temporary file after a crash, and after an upload that fails.
    """

    url: str
    overwrite: bool = False
    atomic: bool = True
    _local: FileDestination | None = field(default=None, init=False, repr=False)

    @property
    def path(self) -> PurePath:
        """The URL, for its last part; the rest of it is not kept as it is."""
        return PurePath(self.url)

    @property
    def written_bytes(self) -> int:
        """How many bytes were written so far."""
        return 0 if self._local is None else self._local.written_bytes

    def open(self) -> None:
        """Open the temporary file.

        Raises:
            UsageError: fsspec, or its package for the protocol, is not installed.
            OutputError: the URL has a file that may not be replaced, or no known protocol.
        """
        if not self.overwrite:
            remote.refuse_existing(self.url)
        try:
            handle, path = tempfile.mkstemp(
                prefix=_PREFIX, suffix="" if self.atomic else f"-{self.path.name}"
            )
            os.close(handle)
        except OSError as error:
            raise OutputError(
                self.url, None, f"no temporary file for it: {error.strerror or error}"
            ) from error
        self._local = FileDestination(Path(path), overwrite=True, atomic=False)
        self._local.open()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes.

        Raises:
            OutputError: they cannot be written.
        """
        self._opened().write(data)

    def commit(self) -> None:
        """Upload the file and remove it here.

        Raises:
            OutputError: it cannot be uploaded.
        """
        local = self._opened()
        try:
            local.commit()
            remote.upload(local.path, self.url)
        except MemexportError as error:
            self.discard()
            if self.atomic:
                raise
            raise OutputError(
                self.url, None, f"{_what(error)}; what was recorded is in {local.path}"
            ) from error
        self._remove()

    def discard(self) -> None:
        """Remove the temporary file, unless it is a live recording; nothing was uploaded before `commit`."""
        if self._local is not None:
            self._local.discard()
            if self.atomic:
                self._remove()

    def _remove(self) -> None:
        if self._local is not None:
            with contextlib.suppress(OSError):
                self._local.path.unlink()

    def _opened(self) -> FileDestination:
        if self._local is None:
            raise OutputError(self.url, None, "is not open")
        return self._local


def live_copy(url: str) -> str:
    """Where the file of a live recording is until it is uploaded; `*` stands for what nobody else has."""
    return f"{tempfile.gettempdir()}{os.sep}{_PREFIX}*-{PurePath(url).name}"


def _what(error: MemexportError) -> str:
    return error.what if isinstance(error, OutputError) else str(error)
