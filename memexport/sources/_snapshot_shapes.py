"""Which operations a trace entry is made of, learnt from one so that many can be read at once.

A pickler writes the entries of a file in a few ways only: the same keys, as references to the memo, and
between them values of a few kinds. A shape is one such way.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from memexport.sources._snapshot_builder import ENTRY_KEYS
from memexport.sources._snapshot_frames import ONLY_FRAMES
from memexport.sources._snapshot_memo import OBJECT, Memo

_NUMBERS: Final = {"addr": "address", "size": "size", "stream": "stream", "time_us": "time_us"} | {
    "device_free": "device_free"
}
_TEXTS: Final = {"action", "compile_context", "user_metadata"}
MAX_PARTS: Final = 24
_DICT, _MARK, _LIST, _SETITEMS = b"}", b"(", b"]", b"u"
_MEMOIZE, _LONG_BINPUT, _TUPLE2 = 0x94, ord("r"), b"\x86"
_INTEGERS: Final = b"KMJ\x8a"
_BINGET, _LONG_BINGET, _STRING = ord("h"), ord("j"), 0x8C


class Part(enum.Enum):
    """What comes next in an entry."""

    LITERAL = enum.auto()
    """These very bytes."""
    NUMBER = enum.auto()
    """An integer, not negative and below 2**63."""
    REFERENCE = enum.auto()
    """A value from the memo."""
    STRING = enum.auto()
    """A string of up to 255 bytes."""
    PUT = enum.auto()
    """An explicit index in the memo, which must be the next one."""
    FRAMES = enum.auto()
    """What is put into a list of frames: up to the literal given here, else up to the end of the entry."""


@dataclass(frozen=True)
class Shape:
    """One way in which entries are written.

    Attributes:
        parts: what to read, in order: a part, the bytes of a literal, and where else the value goes.
        memoized: what the entry puts into the memo, in order: "entry", "frames", "pair" or a column.
        unknown: the keys that are not understood.
    """

    parts: tuple[tuple[Part, bytes, str], ...]
    memoized: tuple[str, ...]
    unknown: tuple[str, ...]

    def named(self, part: Part) -> tuple[str, ...]:
        """Where the values of this kind go."""
        return tuple(name for kind, _, name in self.parts if kind is part)


class _Unfit(Exception):  # noqa: N818 - never leaves this module
    pass


def learn(data: bytes, at: int, memo: Memo) -> Shape | None:
    """The shape of the entry at this place; None if it is not one that can be read with others."""
    try:
        return _Reader(data, at, memo).shape()
    except (_Unfit, IndexError):
        return None


@dataclass
class _Reader:
    """Reads one entry."""

    data: bytes
    at: int
    memo: Memo
    parts: list[tuple[Part, bytes, str]] = field(default_factory=list)
    memoized: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def shape(self) -> Shape:
        self._literal(_DICT)
        self._memoize("entry")
        self._literal(_MARK)
        keys: set[str] = set()
        while self.data[self.at] != _SETITEMS[0]:
            key = self._key()
            if key in keys:
                raise _Unfit
            keys.add(key)
            self._value(key)
        if "action" not in keys:
            raise _Unfit
        self._literal(_SETITEMS)
        if len(self.parts) > MAX_PARTS:
            raise _Unfit
        return Shape(tuple(self.parts), tuple(self.memoized), tuple(self.unknown))

    def _literal(self, literal: bytes) -> None:
        if self.data[self.at : self.at + len(literal)] != literal:
            raise _Unfit
        self.at += len(literal)
        if self.parts and self.parts[-1][0] is Part.LITERAL:
            literal = self.parts.pop()[1] + literal
        self.parts.append((Part.LITERAL, literal, ""))

    def _memoize(self, what: str) -> None:
        """Whatever stands there of the operations that set the memo, or none."""
        code = self.data[self.at]
        if code == _MEMOIZE:
            self._literal(bytes([_MEMOIZE]))
        elif code == _LONG_BINPUT:
            self._literal(bytes([_LONG_BINPUT]))
            self.parts.append((Part.PUT, b"", "put"))
            self.at += 4
        else:
            return
        self.memoized.append(what)

    def _key(self) -> str:
        length = self._reference_length()
        index = int.from_bytes(self.data[self.at + 1 : self.at + length], "little")
        tag, payload = self.memo.get(index)
        key = self.memo.object(payload) if tag == OBJECT else None
        if type(key) is not str:
            raise _Unfit
        self._literal(self.data[self.at : self.at + length])
        if key not in ENTRY_KEYS:
            self.unknown.append(key)
        return key

    def _reference_length(self) -> int:
        match self.data[self.at]:
            case 0x68:  # h
                return 2
            case 0x6A:  # j
                return 5
        raise _Unfit

    def _value(self, key: str) -> None:
        code = self.data[self.at]
        is_text = key in _TEXTS
        if code in (_BINGET, _LONG_BINGET) and key not in _NUMBERS:
            self._part(Part.REFERENCE, key, self._reference_length())
        elif code == _STRING and is_text and key != "action":
            self._part(Part.STRING, key, 2 + self.data[self.at + 1])
            self._memoize(key)
        elif code in _INTEGERS and not is_text and key != "frames":
            self._integers(key)
        elif code == _LIST[0] and key == "frames":
            self._frames()
        else:
            raise _Unfit

    def _integers(self, key: str) -> None:
        """A number, or the pair that is a pool's id."""
        if key != "pool_id":
            self._part(Part.NUMBER, _NUMBERS.get(key, ""), self._integer_length())
            return
        for name in ("pair.first", "pair.second"):
            self._part(Part.NUMBER, name, self._integer_length())
        self._literal(_TUPLE2)
        self._memoize("pair")

    def _integer_length(self) -> int:
        code = self.data[self.at]
        fixed = {ord("K"): 2, ord("M"): 3, ord("J"): 5}.get(code)
        return fixed if fixed is not None else 2 + self.data[self.at + 1]

    def _frames(self) -> None:
        """A list of frames that are known. In the middle of an entry, one is put in otherwise than many."""
        self._literal(_LIST)
        self._memoize("frames")
        known = ONLY_FRAMES.match(self.data, self.at)
        content = known[0] if known is not None else b""
        following = self.data[self.at + len(content)]
        if following == _SETITEMS[0]:
            self._part(Part.FRAMES, "frames", len(content))
        elif following not in (_BINGET, _LONG_BINGET) or content.endswith(b"a"):
            raise _Unfit
        elif content:
            self.at += len(content)
            key = self.data[self.at : self.at + self._reference_length()]
            self.parts.append((Part.FRAMES, b"e" + key, "frames"))

    def _part(self, part: Part, name: str, length: int) -> None:
        self.parts.append((part, b"", name))
        self.at += length
