"""Files behind a URL ("s3://bucket/run.memx"), by way of fsspec: as many protocols as it has packages for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

from memexport.errors import InputError, OutputError, UsageError

CHUNK_BYTES: Final = 1 << 20

Watcher = Callable[[int, float | None], None]
"""Called with the bytes that were copied so far and their share of all (None: unknown)."""


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether this is text with a protocol; a Path never is, it takes "//" for "/"."""
    return isinstance(path, str) and "://" in path


def fetch(url: str, into: BinaryIO, watcher: Watcher | None = None) -> None:
    """Copy the file at the URL, a piece at a time.

    Raises:
        UsageError: fsspec is not installed.
        InputError: there is no such protocol or file, or it cannot be read.
    """
    open_url = _opener()
    # A protocol's package raises what it likes; none of it is this program's fault.
    try:
        filesystem, path = open_url(url)
        size = filesystem.size(path)
        with filesystem.open(path, "rb") as stream:
            copied = 0
            while piece := stream.read(CHUNK_BYTES):
                into.write(piece)
                copied += len(piece)
                if watcher is not None:
                    watcher(copied, min(copied / size, 1.0) if size else None)
    except Exception as error:
        raise InputError(url, None, _reason(error)) from error


def refuse_existing(url: str) -> None:
    """Do nothing, if the URL can be reached and there is no file.

    Raises:
        UsageError: fsspec is not installed.
        OutputError: there is a file, or no such protocol.
    """
    with _writing(url) as (filesystem, path):
        exists = filesystem.exists(path)
    if exists:
        raise OutputError(url, None, "exists already", hint="--force replaces it")


def upload(content: str | os.PathLike[str], url: str) -> None:
    """Put a local file at the URL. Where that fails and nothing was there before, nothing is left there.

    Raises:
        UsageError: fsspec is not installed.
        OutputError: there is no such protocol, or it cannot be written.
    """
    with _writing(url) as (filesystem, path):
        was_there = filesystem.exists(path)
        try:
            filesystem.put_file(os.fspath(content), path)
        except BaseException:
            if not was_there:
                with contextlib.suppress(Exception):
                    filesystem.rm_file(path)
            raise


@contextlib.contextmanager
def _writing(url: str) -> Iterator[tuple[Any, str]]:
    """The filesystem and the path in it; what fails in the block is an `OutputError`."""
    open_url = _opener()
    try:
        yield open_url(url)
    except Exception as error:
        raise OutputError(url, None, _reason(error)) from error


def _opener() -> Callable[[str], tuple[Any, str]]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UsageError("URLs need fsspec", hint="pip install 'memexport[remote]'") from error
    opener: Callable[[str], tuple[Any, str]] = url_to_fs
    return opener


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "No such file or directory"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
