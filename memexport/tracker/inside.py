"""What operators take from the CPU's allocator and give back before they return: their workspaces.

A dispatch mode sees what an operator returns, not what it took on the way. The allocator tells that to a
profiler. One that is on for a single call costs some 20 µs, so few calls are measured: the first ones of
every operator and, of those that were seen to take something (or are known to), the first with each shape of
arguments. What was measured then counts for every later call like it.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol

import torch

from memexport.tracker import legacy_profiler
from memexport.tracker.running import Running

# torch's types for the profiler are not declared.
_autograd: Any = torch._C._autograd
_profiler: Any = torch._C._profiler

Call = Callable[..., Any]

LEAST_BYTES: Final = 512
"""Less is not worth an event: under any dispatch mode, each Python number becomes a tensor of 8 bytes."""

_FIRST_CALLS: Final = 3
_MOST_KINDS: Final = 1000
"""Kinds of calls that are remembered of an operator."""

_MEASURED: Final = ("aten.", "mkldnn.")
"""The operators that are. Others may not be over when they return (collectives), or be Python."""

_BY_SHAPE: Final = (
    "aten.convolution",
    "aten._convolution",
    "aten.mkldnn_",
    "aten._scaled_dot_product_",
    "aten._safe_softmax",
    "aten.native_batch_norm",
    "aten._native_batch_norm",
)
"""Those that are known to take something, or not, as their arguments have it."""


class Operator(Protocol):
    """What is needed of an operator: `call` is called, and `watched` says that the slower way is taken."""

    call: Call
    watched: bool


def is_possible() -> bool:
    """Whether this torch gives its allocator's record."""
    return hasattr(_autograd, "_enable_profiler_legacy") and hasattr(_autograd, "_profiler_enabled")


class Inside:
    """Measures calls of operators and tells `running` of each what it took inside (`Thread.inside`).

    An error of ours ends the measuring, and nothing else.
    """

    def __init__(self, running: Running) -> None:
        self._running = running
        self.is_on = is_possible() and not legacy_profiler.prints_of_accelerator()

    def watch(self, name: str, operator: Operator) -> None:
        """Let the calls of this operator be measured, until it is known to take nothing."""
        if self.is_on and name.startswith(_MEASURED):
            operator.call = _Calls(self, operator, by_shape=name.startswith(_BY_SHAPE))
            operator.watched = True

    def tell(self, inside_bytes: int) -> None:
        """The call that is just over took so much more than is left of it."""
        if inside_bytes >= LEAST_BYTES:
            self._running.thread().inside = inside_bytes

    def measure(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int | None]:
        """The result of the call, and the most bytes inside it beyond those left; None if unknown."""
        if not self._switch_on():
            return call(*args, **kwargs), None
        try:
            result = call(*args, **kwargs)
        finally:
            moves = self._switch_off()
        levels = list(itertools.accumulate(moves, initial=0))
        return result, max(levels) - max(levels[-1], 0)

    def _switch_on(self) -> bool:
        try:
            if not self.is_on or _autograd._profiler_enabled():
                return False
            if legacy_profiler.prints_of_accelerator():
                self.is_on = False
                return False
            state, settings = _profiler.ProfilerState.CPU, _profiler._ExperimentalConfig()
            config = _profiler.ProfilerConfig(state, False, True, False, False, False, settings)
            _autograd._enable_profiler_legacy(config)
        except Exception:
            self.is_on = False
        return self.is_on

    def _switch_off(self) -> list[int]:
        """What the allocator gave, and (< 0) took back, in order."""
        # Collecting garbage may release tensors, and would go through the events again and again.
        collects = gc.isenabled()
        gc.disable()
        try:
            threads = _autograd._disable_profiler_legacy()
            return [event.cpu_memory_usage() for thread in threads for event in thread]
        except Exception:
            self.is_on = False
            return []
        finally:
            if collects:
                gc.enable()


class _Calls:
    """Stands in for the function of an operator, until that is known to take nothing inside."""

    def __init__(self, inside: Inside, operator: Operator, *, by_shape: bool) -> None:
        self._inside = inside
        self._operator = operator
        self._plain, self._was_watched = operator.call, operator.watched
        self._by_shape = by_shape
        self._left = _FIRST_CALLS
        self._known: dict[Hashable, int] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and tell what it took."""
        if not self._inside.is_on:
            self._operator.call, self._operator.watched = self._plain, self._was_watched
            return self._plain(*args, **kwargs)
        try:
            kind = _kind(args)
        except TypeError:
            return self._plain(*args, **kwargs)
        known = self._known.get(kind)
        if known is not None:
            result = self._plain(*args, **kwargs)
        else:
            result, known = self._inside.measure(self._plain, args, kwargs)
            if known is not None:
                self._learn(kind, known)
        self._inside.tell(known or 0)
        return result

    def _learn(self, kind: Hashable, inside_bytes: int) -> None:
        self._by_shape |= inside_bytes >= LEAST_BYTES
        self._left -= 1
        if not self._by_shape:
            if self._left <= 0:
                self._operator.call, self._operator.watched = self._plain, self._was_watched
            return
        if len(self._known) < _MOST_KINDS:
            self._known[kind] = inside_bytes


def _kind(value: Any) -> Hashable:
    """What is the same for calls that take the same: layouts of tensors, whole numbers and flags.

    Raises:
        TypeError: there is a tensor of another kind, of which asking could run anyone's code.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise TypeError(type(value))
        return value.dtype, value.shape, value.stride()
    if isinstance(value, (tuple, list)):
        return tuple([_kind(one) for one in value])
    return value if isinstance(value, (bool, int)) else None
