"""Operators and models for which there is no memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

TOO_MUCH = 1 << 50
"""Elements that no machine has room for."""

CUDA_MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which"
    " 1.25 GiB is free. Process 1 has 77.89 GiB memory in use. Of the allocated memory 70.00 GiB is allocated"
    " by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
)


@torch.library.custom_op("memexport_tests::no_memory", mutates_args=())
def no_memory(x: torch.Tensor) -> torch.Tensor:
    """As an accelerator's allocator fails."""
    raise torch.OutOfMemoryError(CUDA_MESSAGE)


@no_memory.register_fake
def _no_memory(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class NoMemory(nn.Module):
    """Asks the CPU's allocator for too much, `on_cuda` an accelerator's."""

    def __init__(self, *, on_cuda: bool = False) -> None:
        super().__init__()
        self.on_cuda = on_cuda

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return no_memory(x) if self.on_cuda else torch.empty(TOO_MUCH)


class NoMemoryInBackward(torch.autograd.Function):
    """Asks for too much once its result is differentiated."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> Any:
        return torch.empty(TOO_MUCH)


def trained(steps: int = 3) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A model with an optimizer that has state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, steps)
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, after: Any = None) -> None:
    """Some steps; `after` each, call this."""
    for _ in range(steps):
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after()
