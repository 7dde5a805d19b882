"""Writes a pickle's operations by hand: dicts, lists, pairs, strings and numbers, and nothing that runs.

Only operations that torch's own viewer reads are used; its reader, in JavaScript, knows few others.
https://github.com/pytorch/pytorch/blob/v2.9.0/torch/utils/viz/MemoryViz.js
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

HEAD: Final = b"\x80\x04"
STOP: Final = b"."
MARK: Final = b"("
EMPTY_DICT: Final = b"}"
SETITEMS: Final = b"u"
EMPTY_LIST: Final = b"]"
APPENDS: Final = b"e"
MEMOIZE: Final = b"\x94"
LONG_BINGET: Final = b"j"
LONG_OF_8: Final = b"\x8a\x08"
"""Before eight bytes, low ones first: a signed number."""

APPENDED_AT_ONCE: Final = 1_000
"""Items between two APPENDS, as Python's pickler does it; readers hold them on a stack."""

Value = Mapping[str, "Value"] | Sequence["Value"] | tuple[int, int] | str | float | bool | None


class Pickling:
    """Encodes values one after another for one pickle.

    What was written once is referred to from then on: equal strings, and whatever the caller gives a key.
    """

    def __init__(self) -> None:
        self._memo: dict[Hashable, int] = {}

    def value(self, value: Value) -> bytes:
        """The operations that push the value."""
        match value:
            case str():
                return self.text(value)
            case bool():
                return b"\x88" if value else b"\x89"
            case int():
                return integer(value)
            case float():
                return b"G" + struct.pack(">d", value)
            case None:
                return b"N"
            case (int(), int()) as pair if isinstance(pair, tuple):
                return integer(pair[0]) + integer(pair[1]) + b"\x86"
            case Mapping():
                items = [self.text(key) + self.value(item) for key, item in value.items()]
                return EMPTY_DICT + (MARK + b"".join(items) + SETITEMS if items else b"")
            case _:
                return b"".join(listed([self.value(item) for item in value]))

    def text(self, text: str) -> bytes:
        """The operations that push the string."""
        known = self.known(text)
        return known if known is not None else self.remember(text, _string(text))

    def known(self, key: Hashable) -> bytes | None:
        """The operation that pushes what was remembered under this key; None if nothing was."""
        place = self._memo.get(key)
        return None if place is None else reference(place)

    def place(self, key: Hashable) -> int:
        """The number that the memo has for this key; −1 if nothing was remembered under it."""
        return self._memo.get(key, -1)

    def remember(self, key: Hashable, pushed: bytes) -> bytes:
        """These operations, which push one value, and one more that remembers it.

        They must be the next ones to be written: the memo counts.
        """
        self._memo[key] = len(self._memo)
        return pushed + MEMOIZE


def listed(items: Sequence[bytes]) -> Iterator[bytes]:
    """The operations that push a list of what these operations push."""
    yield EMPTY_LIST
    for begin in range(0, len(items), APPENDED_AT_ONCE):
        yield MARK + b"".join(items[begin : begin + APPENDED_AT_ONCE]) + APPENDS


def integer(value: int) -> bytes:
    """The operations that push a number, in the fewest bytes."""
    if 0 <= value < 1 << 8:
        return b"K%c" % value
    if 0 <= value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a%c" % len(encoded) + encoded


def reference(place: int) -> bytes:
    """The operation that pushes what the memo has at this place."""
    return b"h%c" % place if place < 1 << 8 else LONG_BINGET + place.to_bytes(4, "little")


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) < 1 << 8:
        return b"\x8c%c" % len(encoded) + encoded
    return b"X" + len(encoded).to_bytes(4, "little") + encoded
