"""How large an archive may become, as somebody asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from memexport import registry, remote
from memexport.errors import UsageError

LEAST_BYTES: Final = 1 << 20
"""In less, an archive could keep little besides what it says anew where it leaves events out."""

_ARCHIVE: Final = "archive"


def check_limit(max_bytes: int, outputs: Iterable[str | os.PathLike[str]]) -> None:
    """Make sure that it can be kept.

    Raises:
        UsageError: it is too small, or none of the outputs is an archive that could be kept within it.
    """
    if max_bytes < LEAST_BYTES:
        raise UsageError(f"an archive cannot be kept within {max_bytes} bytes", hint="1MiB or more")
    if not any(map(is_archive, outputs)):
        raise UsageError("only an archive on this machine can be kept within a size", hint="-o run.memx")


def is_archive(output: str | os.PathLike[str]) -> bool:
    """Whether a path is that of an archive on this machine."""
    return registry.exporter_for(output).name == _ARCHIVE and not remote.is_url(output)
