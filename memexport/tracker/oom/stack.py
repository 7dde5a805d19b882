"""Where in the program an error was raised."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Final

import memexport
from memexport.tracker.details import is_users

_MOST_FRAMES: Final = 100

_LAUNCHER: Final = str(Path(memexport.__file__).with_name("launcher.py"))
"""What is outside of its frames is the command line's, not the program's."""


def stack_of(error: BaseException) -> list[str]:
    """The user's frames, outermost first: those that are running, then those that the error has left.

    Each as in a recording: "train.py:41:step". Keeps nothing of the error.
    """
    left = []
    traceback = error.__traceback__
    outermost = traceback.tb_frame if traceback is not None else None
    while traceback is not None:
        left.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    running: list[tuple[types.CodeType, int]] = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _LAUNCHER:
            break
        if frame is outermost:
            running.clear()  # where it stands now is not where it was when it raised
        else:
            running.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]  # None at the end, which ends the loop
    frames = [*reversed(running), *left]
    texts = [f"{c.co_filename}:{line}:{c.co_qualname}" for c, line in frames if is_users(c.co_filename)]
    return texts[-_MOST_FRAMES:]
