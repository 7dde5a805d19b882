"""Frames of a call stack ("train.py:41:step"), and which of them are the user's own code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple

# The first number between colons is the line: a function of C++ has colons of its own, a path seldom.
# Torch writes the line −1 of generated code as an unsigned number of 64 bits.
_FRAME: Final = re.compile(r"(.*?):(-?\d{1,20}):(.+)", re.DOTALL)
MAX_LINE: Final = 2**31
"""Lines from here on are none: torch writes such for generated code."""

_CODE: Final = re.compile(r"\.py$|^<(?:stdin|ipython-input)", re.IGNORECASE)
_OF_OTHERS: Final = re.compile(
    r"/(?:site|dist)-packages/"
    r"|/lib(?:64)?/python3[^/]*/"  # the standard library
    r"|/(?:python3\d*|(?:ana|mini)conda3|envs/[^/]+)/lib/"  # and on Windows
    r"|(?:^|/)torch/(?:_|nn/|autograd/|optim/|utils/|distributed/|cuda/|amp/|fx/|jit/|func/|ao/|export/)"
    r"|/torchinductor_",
    re.IGNORECASE,
)
_BACKWARD: Final = re.compile(r"(\w*Backward\w*)::apply")
_OPERATOR: Final = re.compile(r"at::_ops::(\w+)::")


class Frame(NamedTuple):
    """One frame; "" and 0 for what is not known."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Its file without the folder, its line and its function: "train.py:41 step"."""
        if not 0 < self.line < MAX_LINE:
            return self.function
        return f"{PurePosixPath(self.path).name}:{self.line} {self.function}"

    @property
    def path(self) -> str:
        """The file with "/" between its parts, on whatever system it was."""
        return self.file.replace("\\", "/")


def parse_frame(text: str) -> Frame:
    """The frame that a recording's text means; a text of another form is a function's name."""
    match = _FRAME.fullmatch(text)
    if match is None:
        return Frame("", 0, text)
    return Frame(match[1], int(match[2]), match[3])


def is_own_frame(frame: Frame) -> bool:
    """Whether it is Python code that is neither torch's, the standard library's nor of an installed package.

    A library that is installed from its checkout counts as the user's own.
    """
    return frame.line > 0 and bool(_CODE.search(frame.file)) and not _OF_OTHERS.search(frame.path)


def own_code(stack: Sequence[Frame], limit: int) -> tuple[str, ...]:
    """The innermost own frames of a stack, at most `limit`, outermost first, as text.

    Where none is, as in backward's threads, the frame that says most instead: Python code of others, what
    backward runs, an operator.
    """
    own = [frame for frame in stack if is_own_frame(frame)][-limit:]
    if own:
        return tuple(map(str, own))
    for frame in reversed(stack):
        if frame.line and _CODE.search(frame.file):
            return (str(frame),)
    functions = [frame.function for frame in reversed(stack)]
    named = _first(_BACKWARD, functions) or _first(_OPERATOR, functions)
    return (named,) if named else tuple(functions[:1])


def _first(pattern: re.Pattern[str], texts: Iterable[str]) -> str | None:
    return next((match[1] for text in texts if (match := pattern.search(text))), None)
