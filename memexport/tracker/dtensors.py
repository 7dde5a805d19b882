"""Operators of DTensors: those on the part that this process has are recorded, not the call around them.

A dispatch mode is asked first. If it does not handle a DTensor's operator, DTensor does, and calls others on
its own part: those that compute, and collectives before and after them. torch's `MemTracker` does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch

_MODULE: Final = "torch.distributed.tensor"

Dispatch = Callable[..., Any]


class Unwrapping:
    """Says of which operators DTensor is to say what runs.

    Args:
        replace: lets a function that it is given, which takes a dispatch function and gives another, replace
            the mode's. It is called when there is a first DTensor.
    """

    def __init__(self, replace: Callable[[Callable[[Dispatch], Dispatch]], None]) -> None:
        self._replace = replace
        self._dtensor: Any = None
        self._outer_fake_mode: Any = None

    def is_left_to_dtensor(self, types: Any) -> bool:
        """Whether one of these types of arguments is DTensor."""
        if self._dtensor is None:
            module = sys.modules.get(_MODULE)
            dtensor = getattr(module, "DTensor", None)
            if dtensor is None or dtensor not in types:
                return False
            self._dtensor, self._outer_fake_mode = dtensor, _fake_mode()
            self._replace(self._but_for_shapes)
        return self._dtensor in types

    def _but_for_shapes(self, dispatch: Dispatch) -> Dispatch:
        """The same, but nothing is recorded of what DTensor runs to work out the shape of a result."""

        def real(mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            if _fake_mode() is not self._outer_fake_mode:
                return func(*args, **(kwargs or {}))
            return dispatch(mode, func, types, args, kwargs)

        return real


def _fake_mode() -> Any:
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
