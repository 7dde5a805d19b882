"""What can be known of regions that `torch.compile` compiled: what comes out of them, and what they keep.

Compiled code takes memory without the dispatcher, so no operator of ours sees it being taken. This relies on
names of torch's own: `OptimizedModule`, `CompiledFunctionBackward`, `PyCodeCache.modules`; without them,
nothing is found.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Container, Iterator
from typing import Any, Final

import torch
from torch import nn

from memexport.tracker.storages import storage_of, tensors_in

REGION: Final = "torch.compile"
"""The operator of what was made inside a compiled region."""

UNSEEN: Final = "(no operator)"
"""That of an allocation outside of every operator: by compiled or other code that is not dispatched."""

WARNING: Final = (
    "torch.compile's code takes memory where no operator is seen: on the CPU it is counted from where it"
    " comes out of a compiled module, or an operator is given what came out of a compiled function, or not at"
    ' all; capture="allocator" sees all of it'
)

_NODE: Final = "CompiledFunctionBackward"


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile(module)` has returned this, or its own `compile` was called."""
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def maker_of(tensor: torch.Tensor) -> str:
    """What to call the operator that made a tensor which none was seen to make."""
    return REGION if type(tensor.grad_fn).__name__ == _NODE else UNSEEN


def made(output: Any) -> Iterator[torch.Tensor]:
    """The tensors that compiled code returned, and those that it saved for its backward."""
    for tensor in tensors_in(output):
        yield tensor
        node: Any = tensor.grad_fn
        # Hooks that pack what is saved (offloading it, say) would be run by looking.
        if type(node).__name__ == _NODE and not _are_packed():
            with contextlib.suppress(RuntimeError):  # it has been given back already
                yield from (saved for saved in node.saved_tensors if isinstance(saved, torch.Tensor))


def has_own_kernels() -> bool:
    """Whether this process has code that inductor made; other backends run torch's operators."""
    codecache = sys.modules.get("torch._inductor.codecache")
    return bool(getattr(getattr(codecache, "PyCodeCache", None), "modules", None))


def arguments_first(
    dispatch: Callable[..., Any],
    live: Container[int],
    unseen: Callable[[torch.Tensor], None],
    fail: Callable[[Exception], None],
) -> Callable[..., Any]:
    """The same function, told first of each argument whose storage is not among the `live` ones.

    What a compiled function returns is seen so, by the first operator that it is given to. It costs a
    microsecond or two for each operator.
    """

    def heeding(mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        try:
            for tensor in tensors_in(args):
                storage = storage_of(tensor)
                if storage is not None and id(storage) not in live:
                    unseen(tensor)
        except Exception as error:
            fail(error)
        return dispatch(mode, func, types, args, kwargs)

    return heeding


def _are_packed() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
