"""What is recorded of an operator's call only on request: its tensor arguments and the code that made it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import memexport
from memexport.model import Tables

# Frames of these say nothing of the user's program: that it calls torch is known.
_NOT_THE_USERS = tuple(
    str(Path(package.__file__).parent) + os.sep for package in (torch, memexport) if package.__file__
)
_NO_FILE = "<"
"""How the name of a file that is none begins: `<frozen runpy>`, `<__array_function__ internals>`."""


def is_users(filename: str) -> bool:
    """Whether code in this file says something of the user's program."""
    return not filename.startswith((*_NOT_THE_USERS, _NO_FILE))


class Details:
    """Interns the arguments and stacks of calls.

    Args:
        tables: where strings and stacks are interned.
        shapes: record dtypes and shapes of tensor arguments.
        stacks: record the Python stack, without torch's own frames.
    """

    def __init__(self, tables: Tables, *, shapes: bool, stacks: bool) -> None:
        self._tables = tables
        self._shapes = shapes
        self._stacks = stacks
        self._growing = threading.Lock()
        self._frames: dict[tuple[Any, int], int] = {}

    def of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[int, int]:
        """The id of the arguments' text, and of the caller's stack; 0 for what was not asked for."""
        inputs = self._inputs(args, kwargs) if self._shapes else 0
        stack = self._stack() if self._stacks else 0
        return inputs, stack

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> int:
        values = (*args, *kwargs.values()) if kwargs else args
        text = ", ".join(_described(values))
        if not text:
            return 0
        found = self._tables.strings.find(text)
        return found if found is not None else self._intern(text)

    def _stack(self) -> int:
        """The stack below `of_call`, outermost frame first."""
        frames = []
        # That of who calls `of_call`: below it there may be none, in a thread of the autograd engine.
        frame = sys._getframe(2)
        while frame is not None:
            key = (frame.f_code, frame.f_lineno)
            known = self._frames.get(key)
            if known is None:
                known = self._frames[key] = self._new_frame(*key)
            if known:
                frames.append(known)
            frame = frame.f_back  # type: ignore[assignment]  # None at the end, which ends the loop
        frames.reverse()
        with self._growing:
            return self._tables.stacks.intern(frames)

    def _new_frame(self, code: Any, line: int) -> int:
        """The id of a frame's text; 0 for a frame that is not the user's."""
        filename = code.co_filename
        if not is_users(filename):
            return 0
        return self._intern(f"{filename}:{line}:{code.co_qualname}")

    def _intern(self, text: str) -> int:
        with self._growing:
            return self._tables.strings.intern(text)


def _described(values: Any) -> Iterator[str]:
    """Each tensor, also in lists (`foreach` operators take them), as "float32[8, 64]"."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield f"{str(value.dtype)[6:]}{list(value.shape)}"
        elif isinstance(value, (list, tuple)):
            yield from _described(value)
