"""What can be known of regions that `torch.compile` compiled: what comes out of them, and what they keep.

Compiled code takes memory without the dispatcher, so no operator of ours sees it being taken. This relies on
names of torch's own: `OptimizedModule`, `CompiledFunctionBackward`, `PyCodeCache.modules`; without them,
nothing is found.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from memexport.tracker.storages import tensors_in

REGION: Final = "torch.compile"
"""The operator of what was made inside a compiled region."""

WARNING: Final = (
    "torch.compile's code takes memory where no operator is seen: on the CPU it is counted from where it"
    ' comes out of a compiled module, or not at all; capture="allocator" sees all of it'
)


def is_compiled(module: nn.Module) -> bool:
    """Whether this is what `torch.compile(module)` returns."""
    return type(module).__name__ == "OptimizedModule"


def made(output: Any) -> Iterator[torch.Tensor]:
    """The tensors that a compiled module returned, and those that it saved for its backward."""
    for tensor in tensors_in(output):
        yield tensor
        node: Any = tensor.grad_fn
        # Hooks that pack what is saved (offloading it, say) would be run by looking.
        if type(node).__name__ == "CompiledFunctionBackward" and not _are_packed():
            with contextlib.suppress(RuntimeError):  # it has been given back already
                yield from (saved for saved in node.saved_tensors if isinstance(saved, torch.Tensor))


def has_own_kernels() -> bool:
    """Whether this process has code that inductor made; other backends run torch's operators."""
    codecache = sys.modules.get("torch._inductor.codecache")
    return bool(getattr(getattr(codecache, "PyCodeCache", None), "modules", None))


def _are_packed() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
