"""One writer a file: a lock that ends with its process."""

from __future__ import annotations

import contextlib
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]  # every use asks for it


def take(stream: BinaryIO) -> bool:
    """Lock the file; False if another stream, of this process or another, has it locked.

    True where files cannot be locked, as on some network disks.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def give_back(stream: BinaryIO) -> None:
    """Unlock it now: a forked process has inherited the stream, and may live on."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_UN)
