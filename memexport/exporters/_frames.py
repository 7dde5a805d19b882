"""Python frames as traces show them, from their text in a recording ("train.py:41:step")."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final, NamedTuple

# The first number between colons is the line: a function of C++ has colons of its own, a path seldom.
_FRAME: Final = re.compile(r"(.*?):(\d{1,9}):(.+)", re.DOTALL)


class Frame(NamedTuple):
    """One frame of a flamegraph.

    Attributes:
        name: what is written on it.
        file, line: where the code is; "" and 0 for a module, an operator, or where it is not known.
    """

    name: str
    file: str = ""
    line: int = 0


def python_frame(text: str) -> Frame:
    """The frame that a recording's text means; a text of another form is a name."""
    match = _FRAME.fullmatch(text)
    if match is None:
        return Frame(text)
    file, line, function = match[1], int(match[2]), match[3]
    return Frame(f"{function} ({_base(file)}:{line})", file, line) if line else Frame(function)


def _base(file: str) -> str:
    windows = "\\" in file and "/" not in file
    return (PureWindowsPath(file) if windows else PurePosixPath(file)).name
