"""What can go wrong, and the exit code that the command line gives it."""

from __future__ import annotations

import os


class MemexportError(Exception):
    """Base of every error that memexport raises on purpose.

    Attributes:
        exit_code: what the command line exits with.
        hint: what to do next, or None.
    """

    exit_code = 1
    hint: str | None = None


class UsageError(MemexportError):
    """The call asks for something that does not exist or contradicts itself."""

    exit_code = 2

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


class _FileError(MemexportError):
    def __init__(
        self,
        path: str | os.PathLike[str],
        where: str | None,
        what: str,
        hint: str | None = None,
    ) -> None:
        """Say which file, where in it ("byte 4096", "key 'markers'", None for the whole), and what."""
        self.path = os.fspath(path)
        self.where = where
        self.what = what
        self.hint = hint
        super().__init__(": ".join(part for part in (self.path, where, what) if part))


class InputError(_FileError):
    """A file cannot be read: missing, damaged, of no known format, or from a newer memexport."""

    exit_code = 3


class OutputError(_FileError):
    """A file cannot be written: it exists, the disk is full, the folder is missing or read-only."""

    exit_code = 4
