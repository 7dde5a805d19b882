"""Tests of what listens on the one port that the online Perfetto UI may fetch from take turns."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

URL = "http://127.0.0.1:9001"


@contextmanager
def port_9001() -> Iterator[None]:
    """Have the port, for all test processes of this machine."""
    with Path(tempfile.gettempdir(), "memexport-tests-port-9001.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
