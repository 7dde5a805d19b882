"""What a snapshot's pickle is made of on the way to columns, and the limits that keep it small."""

from __future__ import annotations

import json
from typing import Any, Final

from memexport.sources._pickle_machine import Refusal, kind
from memexport.sources._snapshot_memo import Settled

MAX_TEXT: Final = 2**20
"""Of the text that metadata is written as."""

_WORDS: Final = {
    "record": "dict",
    "items": "list",
    "settled": "value that was used as something else",
    "tracerows": "trace",
    "blockrows": "list of blocks",
    "segmentrows": "list of segments",
}
_DICT_BYTES, _LIST_BYTES, _ITEM_BYTES, _ELEMENT_BYTES = 120, 100, 80, 40
_FREE_BYTES: Final = 2**25
_MOST_BYTES: Final = 2**30


class Misfit(Exception):  # noqa: N818 - becomes an InputError once the place is known
    """A value that cannot be in a snapshot; says what and why, not where."""


class Record(dict[Any, Any]):
    """A dict of the pickle.

    Attributes:
        memo: its index in the memo, or −1.
        settled: what it has become once it was used. It is empty from then on.
        collects: whether it is the root or a segment, whose lists are read as they come.
    """

    __slots__ = ("collects", "memo", "settled")

    def __init__(self) -> None:
        super().__init__()
        self.memo = -1
        self.settled: Settled | None = None
        self.collects: str = ""


class Items(list[Any]):
    """A list of the pickle; as `Record`. `collects` is set for the list of the devices' traces."""

    __slots__ = ("collects", "memo", "settled")

    def __init__(self) -> None:
        super().__init__()
        self.memo = -1
        self.settled: Settled | None = None
        self.collects: str = ""


def now(value: Any) -> Any:
    """What the value has become, else itself."""
    return value.settled or value if isinstance(value, Record | Items) else value


class Meter:
    """Refuses a pickle whose objects take far more memory than their description.

    Counts roughly, and on the high side.
    """

    def __init__(self, file_bytes: int) -> None:
        self._left = min(_FREE_BYTES + 16 * file_bytes, _MOST_BYTES)

    def charge(self, count: int) -> None:
        """These bytes are taken.

        Raises:
            Refusal: that are too many in all.
        """
        self._left -= count
        if self._left < 0:
            raise Refusal("describes far more than its size allows")

    def made(self, value: Record | Items) -> None:
        """An empty dict or list was made."""
        self.charge(_DICT_BYTES if type(value) is Record else _LIST_BYTES)

    def added(self, value: Record | Items, count: int) -> None:
        """So many items were put into it."""
        self.charge(count * (_ITEM_BYTES if type(value) is Record else _ELEMENT_BYTES))

    def released(self, value: Record | Items) -> None:
        """It will be emptied now."""
        if type(value) is Record:
            self._left += _DICT_BYTES + len(value) * _ITEM_BYTES
        else:
            self._left += _LIST_BYTES + len(value) * _ELEMENT_BYTES


def shown(value: object) -> str:
    """A value as an error names it, short."""
    if isinstance(value, bool | int | float | str | None):
        return repr(value)[:60]
    return f"a {named(value)}"


def named(value: object) -> str:
    """The type of a value in Python's words."""
    return _WORDS.get(kind(value), kind(value))


def as_text(value: Any) -> str:
    """A string itself; anything else as compact JSON.

    Raises:
        Misfit: the text would be longer than `MAX_TEXT`.
    """
    if type(value) is str:
        return value
    return json.dumps(_Plain().of(value), ensure_ascii=False, separators=(",", ":"))


class _Plain:
    """Makes what `json` can write, without following shared objects for ever."""

    def __init__(self) -> None:
        self._left = MAX_TEXT

    def of(self, value: Any, depth: int = 0) -> Any:
        self._spend(8, depth)
        match now(value):
            case str() as text:
                self._spend(len(text), depth)
                return text
            case bytes() as data:
                self._spend(4 * len(data), depth)
                return data.decode(errors="backslashreplace")
            case dict() as record:
                return {str(self.of(key, depth)): self.of(item, depth + 1) for key, item in record.items()}
            case list() | tuple() as items:
                return [self.of(item, depth + 1) for item in items]
            case bool() | int() | float() | None as scalar:
                return scalar
            case other:
                return f"<{named(other)}>"

    def _spend(self, count: int, depth: int) -> None:
        self._left -= count
        if self._left < 0 or depth > 32:
            raise Misfit("is too large or too deeply nested for metadata")
