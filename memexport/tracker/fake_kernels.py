"""Results whose size only a real kernel knows."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch.utils._mode_utils import no_dispatch

RNN_LAYER: Final[Any] = torch.ops.aten.mkldnn_rnn_layer.default
RNN_LAYER_BACKWARD: Final[Any] = torch.ops.aten.mkldnn_rnn_layer_backward.default
_MOST_WORK: Final = 2_000_000_000
"""Multiplications that are worth it: about a second."""


def with_workspace(result: Any, args: tuple[Any, ...]) -> Any:
    """The result of an LSTM layer on the CPU with the workspace that oneDNN keeps for its backward.

    How large that is depends on the processor, so it is asked for once for each shape, on zeros; for layers
    that would take long, it is left out as torch does.
    """
    output, hidden, cell, workspace = result
    if workspace is None or not torch.is_grad_enabled():
        return result
    described = tuple(
        (tuple(arg.shape), arg.dtype) if isinstance(arg, torch.Tensor) else _hashable(arg) for arg in args
    )
    size = _workspace_size(described)
    return (output, hidden, cell, workspace.new_empty((size,))) if size else result


def with_both_biases(result: Any) -> Any:
    """The gradients of an LSTM layer on the CPU: each bias has a tensor, in torch's model both one."""
    gradients = list(result)
    if gradients[3] is gradients[4] and gradients[4] is not None:
        gradients[4] = torch.empty_like(gradients[4])
    return tuple(gradients)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=256)
def _workspace_size(described: tuple[Any, ...]) -> int:
    """In elements; 0 if it is not known."""
    (steps, batch, width), _ = described[0]
    gates, hidden = described[2][0]
    if steps * batch * gates * (width + hidden) > _MOST_WORK:
        return 0
    with no_dispatch(), torch._C.DisableTorchFunction(), torch.enable_grad():
        real = [
            torch.zeros(part[0], dtype=part[1]) if _is_tensor(part) else _plain(part) for part in described
        ]
        return int(RNN_LAYER(*real)[3].numel())


def _is_tensor(part: Any) -> bool:
    return isinstance(part, tuple) and len(part) == 2 and isinstance(part[1], torch.dtype)


def _plain(part: Any) -> Any:
    return list(part) if isinstance(part, tuple) else part
