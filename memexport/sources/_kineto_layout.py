"""Where the elements of a piece of JSON end, and what in it a strict decoder would not take.

The slow way through a trace, for what the fast one stumbles over; still some hundred megabytes a second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_QUOTE, _OPENS, _CLOSES, _SPACE = ord('"'), ord("{"), ord("}"), ord(" ")
# "[" and "]" differ from "{" and "}" in this bit only.
_CURLY: Final = np.uint8(0x20)
_NOT_A_NUMBER: Final = re.compile(rb"(?:NaN|nan|Infinity|inf)\b")
# A pair of surrogates, half a pair, a sound escape, or a lone backslash (a Windows path).
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb'|["\\/bfnrt]|u[0-9a-fA-F]{4}|(?P<lone>))'
)


@dataclass(frozen=True)
class Layout:
    """How a text is built that begins inside an array, between two of its elements.

    Attributes:
        element_ends: where each element that is an object or array ends: the position after its bracket.
        array_end: the position of the bracket that closes the array; None if it comes later.
        in_string: whether each byte is in a string; the opening quote is, the closing one is not.
        bracket: the positions of all brackets.
        depth: how many brackets are open after each of them.
    """

    element_ends: npt.NDArray[np.int64]
    array_end: int | None
    in_string: npt.NDArray[np.bool_]
    bracket: npt.NDArray[np.int64]
    depth: npt.NDArray[np.int32]

    def depth_at(self, position: int) -> int:
        """How many brackets are open before this byte."""
        brackets = int(np.searchsorted(self.bracket, position))
        return int(self.depth[brackets - 1]) if brackets else 0


def layout_of(text: bytes) -> Layout:
    """Find the strings and count the brackets outside of them."""
    # Escaped characters end no string. A run of backslashes is paired from its start, as JSON does.
    plain = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    codes = np.frombuffer(plain, np.uint8)
    in_string = np.bitwise_xor.accumulate((codes == _QUOTE).view(np.uint8)).view(np.bool_)
    curly = codes | _CURLY
    bracket = np.flatnonzero(((curly == _OPENS) | (curly == _CLOSES)) & ~in_string)
    opens = curly[bracket] == _OPENS
    depth = np.cumsum(np.where(opens, np.int8(1), np.int8(-1)), dtype=np.int32)
    below = np.flatnonzero(depth < 0)
    stop = int(below[0]) if len(below) else len(bracket)
    ends = bracket[:stop][(depth[:stop] == 0) & ~opens[:stop]] + 1
    return Layout(ends, int(bracket[stop]) if len(below) else None, in_string, bracket, depth)


def mended(text: bytes, in_string: npt.NDArray[np.bool_]) -> bytes:
    """The text as valid JSON, where its only faults are those that traces are known to have.

    They are NaN and infinite numbers, control characters and broken UTF-8 in strings, half surrogate pairs,
    lone backslashes, and a comma after the last element.
    """
    in_string = in_string[: len(text)]
    codes = np.frombuffer(text, np.uint8).copy()
    codes[(codes < _SPACE) & in_string] = _SPACE
    text = _without_odd_numbers(codes.tobytes(), codes, in_string).rstrip().removesuffix(b",")
    text = text.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(_mended_escape, text) if b"\\" in text else text


def _without_odd_numbers(
    text: bytes, codes: npt.NDArray[np.uint8], in_string: npt.NDArray[np.bool_]
) -> bytes:
    """The text with null for what is no number in JSON."""
    # Outside of strings, these letters stand in nothing else; "true", "false" and "null" have none of them.
    odd = (codes == ord("N")) | (codes == ord("I")) | (codes == ord("i"))
    odd[:-1] |= (codes[:-1] == ord("n")) & (codes[1:] == ord("a"))
    parts: list[bytes] = []
    begin = 0
    for place in np.flatnonzero(odd & ~in_string).tolist():
        found = _NOT_A_NUMBER.match(text, place)
        if found and place >= begin:
            parts += (text[begin:place].removesuffix(b"-"), b"null")
            begin = found.end()
    return b"".join((*parts, text[begin:]))


def _mended_escape(found: re.Match[bytes]) -> bytes:
    if found["half"]:
        return rb"\ufffd"
    return found[0] if found["lone"] is None else rb"\\"
