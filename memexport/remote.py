"""Files behind a URL ("s3://bucket/run.memx"), by way of fsspec: as many protocols as it has packages for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from memexport.errors import InputError, OutputError, UsageError

CHUNK_BYTES: Final = 1 << 20

Watcher = Callable[[int, float | None], None]
"""Called with the bytes that were copied so far and their share of all (None: unknown)."""


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether this is text with a protocol; a Path never is, it takes "//" for "/"."""
    return isinstance(path, str) and "://" in path


def fixed(path: str) -> str:
    """The same file, whatever the working directory becomes."""
    return path if is_url(path) else os.fspath(Path(path).absolute())


def is_pattern(path: str) -> bool:
    """Whether this is a URL with a `*` in its path, which stands for several files; web servers list none."""
    protocol, separator, rest = path.partition("://")
    return bool(separator) and "*" in rest.partition("/")[2] and protocol not in ("http", "https")


def matching(pattern: str) -> list[str]:
    """The URLs of the files that it stands for, in the order of their names; at least one.

    Raises:
        UsageError: fsspec, or its package for the protocol, is not installed.
        InputError: there is none, or they cannot be listed.
    """
    folder = pattern[: pattern.index("*")].rpartition("/")[0]
    filesystem, path = _located(pattern, InputError)
    below = _located(folder + "/", InputError)[1].rstrip("/")
    try:
        found = filesystem.glob(path, detail=True)
    except Exception as error:
        raise InputError(pattern, None, _reason(error, pattern)) from error
    names = sorted(name for name, info in found.items() if info["type"] == "file")
    if not names:
        raise InputError(pattern, None, "no file has such a name")
    return [folder + name.removeprefix(below) for name in names]


def fetch(url: str, into: BinaryIO, watcher: Watcher | None = None) -> None:
    """Copy the file at the URL, a piece at a time.

    Raises:
        UsageError: fsspec, or its package for the protocol, is not installed.
        InputError: there is no such protocol or file, or it cannot be read.
    """
    filesystem, path = _located(url, InputError)
    # A protocol's package raises what it likes; none of it is this program's fault.
    try:
        size = filesystem.size(path)
        with filesystem.open(path, "rb") as stream:
            copied = 0
            while piece := stream.read(CHUNK_BYTES):
                into.write(piece)
                copied += len(piece)
                if watcher is not None:
                    watcher(copied, min(copied / size, 1.0) if size else None)
    except Exception as error:
        raise InputError(url, None, _reason(error, url)) from error


def refuse_existing(url: str) -> None:
    """Do nothing, if the URL can be reached and there is no file.

    Raises:
        UsageError: fsspec, or its package for the protocol, is not installed.
        OutputError: there is a file, or neither such a protocol nor such a bucket.
    """
    with _writing(url) as (filesystem, path):
        try:
            filesystem.info(path)
        except FileNotFoundError as error:
            # Unlike a folder, a bucket is not made by writing into it. S3 and Google say so in words.
            if "bucket" in _reason(error, url):
                raise
            return
    raise OutputError(url, None, "exists already", hint="--force replaces it")


def state(url: str) -> str | None:
    """What its service knows of the file at the URL, its time and size among it; None if it says nothing."""
    try:
        filesystem, path = _located(url, InputError)
        return str(filesystem.info(path))
    except Exception:
        return None


def upload(content: str | os.PathLike[str], url: str) -> None:
    """Put a local file at the URL. Where that fails and nothing was there before, nothing is left there.

    Raises:
        UsageError: fsspec, or its package for the protocol, is not installed.
        OutputError: there is no such protocol, or it cannot be written.
    """
    with _writing(url) as (filesystem, path):
        was_there = _may_exist(filesystem, path)
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
    located = _located(url, OutputError)
    try:
        yield located
    except Exception as error:
        raise OutputError(url, None, _reason(error, url)) from error


def _may_exist(filesystem: Any, path: str) -> bool:
    try:
        return bool(filesystem.exists(path))
    except PermissionError:
        # Some may write and not look.
        return True


def _located(url: str, failure: type[InputError | OutputError]) -> tuple[Any, str]:
    """The filesystem and the path in it. A file may be there or not.

    Raises:
        UsageError: fsspec, or its package for the protocol, is not installed.
        InputError | OutputError: what `failure` says: there is no such protocol, or no such server.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UsageError("URLs need fsspec", hint="pip install 'memexport[remote]'") from error
    try:
        found: tuple[Any, str] = url_to_fs(url)
    except ImportError as error:
        # fsspec says which.
        raise UsageError(f"{url} needs a package that is not installed", hint=str(error)) from error
    except Exception as error:
        raise failure(url, None, _reason(error, url)) from error
    return found


def _reason(error: Exception, url: str) -> str:
    """What went wrong, in one line of words."""
    if isinstance(error, FileNotFoundError) and (error.strerror or str(error) in url):
        # Many say no more than the path.
        return "No such file or directory"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
