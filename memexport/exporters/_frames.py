"""Frames of a call stack as flamegraphs show them."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import NamedTuple

from memexport.analysis.frames import MAX_LINE, parse_frame


class Frame(NamedTuple):
    """One frame of a flamegraph.

    Attributes:
        name: what is written on it.
        file, line: where the code is; "" and 0 for a module, an operator, or where it is not known.
    """

    name: str
    file: str = ""
    line: int = 0


def code_frame(text: str) -> Frame:
    """The frame of a recording's stack ("train.py:41:step"): function first, as flames are narrow."""
    frame = parse_frame(text)
    if not 0 < frame.line < MAX_LINE:
        return Frame(frame.function)
    return Frame(f"{frame.function} ({PurePosixPath(frame.path).name}:{frame.line})", frame.file, frame.line)
