"""What can go wrong, and the exit code that the command line gives it."""

from __future__ import annotations

import os
from typing import Any


class MemexportError(Exception):
    """Base of every error that memexport raises on purpose.

    Attributes:
        exit_code: what the command line exits with.
        hint: what to do next, or None.
    """

    exit_code = 1
    hint: str | None = None


def _show_in_traceback(error: MemexportError) -> None:
    """Let Python show the hint below the message, where nobody catches the error."""
    if error.hint:
        error.add_note(f"({error.hint})")


class UsageError(MemexportError):
    """The call asks for something that does not exist or contradicts itself."""

    exit_code = 2

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint
        _show_in_traceback(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with all that it says, to come back from another process."""
        return type(self), (str(self), self.hint)


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
        _show_in_traceback(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with all that it says, to come back from another process."""
        return type(self), (self.path, self.where, self.what, self.hint)


class InputError(_FileError):
    """A file cannot be read: missing, damaged, of no known format, or from a newer memexport."""

    exit_code = 3


class OutputError(_FileError):
    """A file cannot be written: it exists, the disk is full, the folder is missing or read-only."""

    exit_code = 4
