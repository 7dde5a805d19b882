"""Text formats: lines made in bulk from columns, written plain or gzipped."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.exporters.destination import Destination

_GZIP_LEVEL: Final = 4
_GZIP_WBITS: Final = 31


class TextFile:
    """Writes text to a destination; gzipped if its name ends in `.gz`."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        is_gzip = destination.path.name.lower().endswith(".gz")
        self._gzip = zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS) if is_gzip else None

    def open(self) -> None:
        """Open the destination."""
        self._destination.open()

    def write(self, text: str) -> None:
        """Hand the text to the operating system; what was gzipped so far can be read back."""
        content = _encoded(text)
        if self._gzip is not None:
            content = self._gzip.compress(content) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        self._destination.write(content)

    def close(self, text: str = "") -> None:
        """Write the last text, and put the file in its place."""
        content = _encoded(text)
        if self._gzip is not None:
            content = self._gzip.compress(content) + self._gzip.flush()
        self._destination.write(content)
        self._destination.commit()

    def discard(self) -> None:
        """Leave no half-written file behind."""
        self._destination.discard()


def _encoded(text: str) -> bytes:
    """As UTF-8; half a surrogate pair, which has no encoding, as its escape."""
    return text.encode("utf-8", "backslashreplace")


class Fragments(dict[Any, str]):
    """Pieces of text by key, each made once, when it is first asked for."""

    def __init__(self, make: Callable[[Any], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> str:
        text = self[key] = self._make(key)
        return text

    def of(self, *columns: npt.NDArray[Any]) -> Iterable[str]:
        """The text of each row; several columns make a tuple the key."""
        if len(columns) == 1:
            return map(self.__getitem__, columns[0].tolist())
        return map(self.__getitem__, zip(*(column.tolist() for column in columns), strict=True))


def quoted(text: str | None) -> str:
    """The text as JSON, ASCII only; None is `null`."""
    return json.dumps(text)


def numbers(values: npt.NDArray[Any], null: int, instead: str) -> list[Any]:
    """The integers, with other text where one is null; for a `%s`."""
    missing = values == null
    if not missing.any():
        whole: list[Any] = values.tolist()
        return whole
    mixed = values.astype(object)
    mixed[missing] = instead
    shown: list[Any] = mixed.tolist()
    return shown


def lines(template: str, *columns: Iterable[Any]) -> Iterable[str]:
    """The `%` template filled with each row."""
    return map(template.__mod__, zip(*columns, strict=True))


def microseconds(time_ns: npt.NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Whole microseconds and the nanoseconds left, for `%d.%03d`: exact, as a float would not be."""
    whole, rest = np.divmod(time_ns, 1000)
    return whole.tolist(), rest.tolist()
