"""The dispatch mode that is told of every operator, and what it keeps of each."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memexport.model import Category
from memexport.tracker import rows
from memexport.tracker.claims import COLLECTIVES
from memexport.tracker.rows import Labels

_WATCHED: Final = (
    "aten.resize",
    "aten.set_",
    "aten.detach",
    "aten.clone",
    "aten.new_empty_strided",
    *COLLECTIVES,
)


class Operator:
    """What is the same for every call of an operator.

    Attributes:
        function: the one that torch dispatches.
        call: calls it.
        code, allocation_code, inside_code: of the rows of its calls, of what they allocate and take inside.
        collective: its name if it is a collective, else None.
        is_view: it only returns its arguments' memory under another shape, and takes none.
        watched: its result has to be looked through: it may change a storage's size, or make a gradient a
            parameter's.
    """

    __slots__ = (
        "allocation_code",
        "call",
        "code",
        "collective",
        "function",
        "inside_code",
        "is_view",
        "watched",
    )

    def __init__(self, function: Any, labels: Labels) -> None:
        name = str(function)
        self.function = function  # keeps its id from being used again
        # What OpOverload.__call__ calls: a Python frame less, 0.25 µs.
        self.call = function._op if type(function) is torch._ops.OpOverload else function
        # A simulated tensor's `.device` is asked through the dispatcher, as prim.device; profiler annotations
        # come that way too. Neither works on memory.
        ignored = name.startswith(("prim.", "profiler."))
        self.code = labels.code(rows.IGNORED if ignored else rows.OPERATOR, name)
        self.allocation_code = labels.code(rows.ALLOCATION, name, Category.UNATTRIBUTED)
        self.inside_code = labels.code(rows.SAMPLE, name)
        self.collective = name if name in COLLECTIVES else None
        self.is_view = bool(getattr(function, "is_view", False))
        self.watched = name.startswith(_WATCHED) or "out" in name.rpartition(".")[2]


class DispatchMode(TorchDispatchMode):
    """Calls the function it was given for every operator."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` work as without us; what runs inside a compiled region is not seen."""
        return True

    def __init__(self, dispatch: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's is not annotated
        self.call(dispatch)

    def call(self, dispatch: Callable[..., Any]) -> None:
        """Call this function, with the mode as its first argument, from now on."""
        # On the instance: the dispatcher finds it there without the wrapper that torch puts around a class's
        # (0.6 µs per operator), and it can be replaced.
        self.__torch_dispatch__ = types.MethodType(dispatch, self)  # type: ignore[method-assign]  # see above
        self.dispatch = dispatch


def pass_through(
    _mode: DispatchMode, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    """Record nothing."""
    return func(*args, **(kwargs or {}))
