"""A profile as `go tool pprof` reads it: one protobuf message with tables of its own.

https://github.com/google/pprof/blob/main/proto/profile.proto
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from memexport.exporters._frames import Frame
from memexport.exporters._perfetto_interning import protobuf_text
from memexport.wire import LENGTH_DELIMITED, VARINT, encode_varint, tag

_MAPPING_ID: Final = 1


class Profile:
    """Collects samples; `encode` gives the message.

    Args:
        sample_types: the name and unit of each of a sample's values.
        default_type: the name of the one that viewers show first.
        program: the name of what was profiled.
    """

    def __init__(self, sample_types: Sequence[tuple[str, str]], default_type: str, program: str) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[int, Frame], int] = {}
        self._head = [_message(1, self._value_type(*kind)) for kind in sample_types]
        self._default_type = self._string(default_type)
        self._body: list[bytes] = [_message(3, self._mapping(program))]

    def add(self, frames: Sequence[Frame], values: Sequence[int], labels: Mapping[str, str | None]) -> None:
        """A sample: its frames, outermost first; its values ≥ 0; what is known about it."""
        places = [self._location(frame) for frame in reversed(frames)]
        known = [_message(3, self._label(key, of)) for key, of in labels.items() if of is not None]
        self._body.append(_message(2, b"".join((_packed(1, places), _packed(2, values), *known))))

    def encode(self, time_unix_ns: int | None, comments: Iterable[str], dropped: str = "") -> bytes:
        """The whole message.

        Args:
            time_unix_ns: the moment it shows, if known.
            comments: lines for the reader.
            dropped: a regular expression for functions that viewers leave out, with what they call.
        """
        tail = [
            _number(7, self._string(dropped)),
            _number(9, time_unix_ns or 0),
            _message(11, self._value_type("space", "bytes")),
            _number(12, 1),
            _packed(13, [self._string(comment) for comment in comments]),
            _number(14, self._default_type),
        ]
        tables = (
            *[_message(4, self._encoded_location(*entry)) for entry in self._locations.items()],
            *[_message(5, self._encoded_function(*entry)) for entry in self._functions.items()],
        )
        strings = [_message(6, protobuf_text(text).encode()) for text in self._strings]
        return b"".join((*self._head, *self._body, *tables, *strings, *tail))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _location(self, frame: Frame) -> int:
        function = self._functions.setdefault((frame.name, frame.file), len(self._functions) + 1)
        self._string(frame.name)
        self._string(frame.file)
        return self._locations.setdefault((function, frame), len(self._locations) + 1)

    def _value_type(self, name: str, unit: str) -> bytes:
        return _number(1, self._string(name)) + _number(2, self._string(unit))

    def _mapping(self, program: str) -> bytes:
        """One for all: it says that every name, file and line is known, and nothing is to be looked up."""
        flags = b"".join(_number(number, 1) for number in (7, 8, 9))
        return _number(1, _MAPPING_ID) + _number(5, self._string(program)) + flags

    def _label(self, key: str, value: str) -> bytes:
        return _number(1, self._string(key)) + _number(2, self._string(value))

    def _encoded_location(self, key: tuple[int, Frame], location: int) -> bytes:
        function, frame = key
        line = _number(1, function) + _number(2, frame.line)
        ids = _number(1, location) + _number(2, _MAPPING_ID) + _number(3, _address(frame))
        return ids + _message(4, line)

    def _encoded_function(self, key: tuple[str, str], function: int) -> bytes:
        name, file = map(self._string, key)
        return _number(1, function) + _number(2, name) + _number(3, name) + _number(4, file)


def _address(frame: Frame) -> int:
    """The same for the same line in every profile; 0, for unknown, where no code is meant.

    Perfetto takes functions of one name for one where they have no addresses: each module has a `forward`.
    """
    if not frame.file:
        return 0
    return zlib.crc32(
        "\0".join((frame.name, frame.file, str(frame.line))).encode("utf-8", "backslashreplace")
    )


def _number(field: int, value: int) -> bytes:
    """A field with a number ≥ 0; nothing for 0, which is what a missing one means."""
    return tag(field, VARINT) + encode_varint(value) if value else b""


def _message(field: int, content: bytes) -> bytes:
    return tag(field, LENGTH_DELIMITED) + encode_varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(encode_varint, values)))
