"""Decodes a pickle of `torch.cuda.memory._dump_snapshot` into columns, without keeping what it is made of.

Reads a file of any size in windows of some MiB; what remains is about fifty bytes per trace entry. Reads all
that torch has written since 1.13: a dict, or a bare list of segments (`torch.cuda.memory_snapshot()`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from memexport.errors import InputError
from memexport.model import Tables
from memexport.sources._pickle_machine import PickleRefusedError, Refusal
from memexport.sources._pickle_window import Window
from memexport.sources._snapshot import Snapshot
from memexport.sources._snapshot_assembly import assembled
from memexport.sources._snapshot_builder import Builder
from memexport.sources._snapshot_machine import SnapshotMachine

WINDOW_BYTES: Final = 2**19

_ROOT: Final = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?([]}])(?:\x94|q.|r.{4})?[(}\x8cX]", re.DOTALL)


def sniff(head: bytes) -> bool:
    """Whether a pickle that begins so (up to 64 KiB) is a snapshot, by the keys it sets."""
    root = _ROOT.match(head)
    if root is None:
        return False
    if _has(head, b"total_size") and _has(head, b"blocks"):
        return True
    return root[1] == b"}" and _has(head, b"device_traces")


def _has(head: bytes, word: bytes) -> bool:
    length = len(word)
    return b"\x8c%c%s" % (length, word) in head or b"X%c\x00\x00\x00%s" % (length, word) in head


def read_snapshot(path: Path, tables: Tables, progress: Callable[[float], None] | None = None) -> Snapshot:
    """Everything that the file says; strings and stacks are interned in `tables`.

    Args:
        path: the file.
        tables: what the ids in the columns stand for, afterwards.
        progress: called now and then with the fraction that is read.

    Raises:
        InputError: the file cannot be read or is no snapshot; nothing in it is ever executed.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            return read_stream(stream, Builder(path, tables, size), size, WINDOW_BYTES, progress)
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error)) from error


def read_stream(
    stream: BinaryIO,
    builder: Builder,
    size: int,
    window_bytes: int,
    progress: Callable[[float], None] | None = None,
) -> Snapshot:
    """As `read_snapshot`, from a stream of that size, so many bytes at a time."""
    machine = SnapshotMachine(Window(stream, size, window_bytes, progress), builder)
    try:
        return assembled(machine.run(), builder)
    except PickleRefusedError as error:
        raise InputError(builder.path, f"byte {error.position}", error.what) from error
    except Refusal as refusal:
        raise InputError(builder.path, None, str(refusal)) from refusal
