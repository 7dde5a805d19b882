"""What an accelerator's allocator itself says of a request that it refuses: to the byte, before the error.

An observer cannot be taken away again, so there is one per process and kind of device; all that it does is
remember the numbers.
"""

from __future__ import annotations

import threading
from typing import Final

import torch

from memexport.tracker.oom.request import Request

_attached: Final[set[str]] = set()
_refused: Final[dict[int, Request]] = {}
_attaching: Final = threading.Lock()


def attach(device_type: str) -> None:
    """Let this kind of device tell of requests that it refuses, where torch can. Raises nothing.

    The device must have been used: torch would start its driver.
    """
    observe = getattr(torch._C, f"_{device_type}_attachOutOfMemoryObserver", None)
    with _attaching:
        if observe is None or device_type in _attached:
            return
        _attached.add(device_type)
    try:
        observe(_observer(device_type))
    except Exception:  # it says a little more than the message does, and no more than that
        return


def take() -> Request | None:
    """What was refused in this thread since the last time, the latest; None if nothing was."""
    return _refused.pop(threading.get_ident(), None)


def _observer(device_type: str) -> object:
    def refused(device: int, asked: int, _total: int, free: int) -> None:
        _refused[threading.get_ident()] = Request(asked, f"{device_type}:{device}", free)

    return refused
