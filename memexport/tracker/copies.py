"""Copies from one device to another: the allocator of the first is asked too, which no other operator needs.

What is copied may have to be laid out anew before, in memory that is given back at once. The reading after an
operator is of the device of its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from memexport.tracker.rows import DEVICE_UNIT
from memexport.tracker.running import Running
from memexport.tracker.storages import PLAIN, Storages

_COPIES: Final = ("aten._to_copy", "aten.copy_")


class Operator(Protocol):
    """What is needed of an operator: `call` is called, and `inside_code` is of a SAMPLE inside of it."""

    call: Callable[..., Any]
    inside_code: int


class Sources:
    """Asks the allocators of the devices that are copied from.

    An error of ours ends that, and nothing else.
    """

    def __init__(self, storages: Storages, running: Running) -> None:
        self._storages = storages
        self._running = running
        self._is_on = True

    def watch(self, name: str, operator: Operator) -> None:
        """Heed the calls of this operator, if it copies."""
        if not name.startswith(_COPIES):
            return
        call, devices = operator.call, self._storages.devices

        def copied(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if len(devices) > 1 and self._is_on:
                self._look(args, result, operator.inside_code)
            return result

        operator.call = copied

    def _look(self, args: tuple[Any, ...], result: Any, code: int) -> None:
        try:
            for tensor in args:
                if type(tensor) in PLAIN and tensor is not result:
                    self._look_at(tensor, result, code)
        except Exception:
            self._is_on = False

    def _look_at(self, source: torch.Tensor, result: torch.Tensor, code: int) -> None:
        known, allocators = self._storages.known(source), self._storages.allocators
        if known is None or allocators.readers[known.device // DEVICE_UNIT] is None:
            return
        if source.device != result.device:
            allocators.look(known.device, code, self._running.here(), time.perf_counter_ns())
