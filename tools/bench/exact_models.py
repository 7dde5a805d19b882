"""Eight small models whose peaks the allocator itself tells: what an exact recording is held against."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Training:
    """A model in training; `step` leaves memory as it was once it has run twice."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    make_input: Callable[[], torch.Tensor]

    def step(self) -> None:
        """Forward, backward and update on random input."""
        output = self.model(self.make_input())
        (output[0] if isinstance(output, tuple) else output).pow(2).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Transformer(nn.Module):
    """Three encoder layers, checkpointed or not."""

    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch × tokens × 64 in and out."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
        return x


class TiedWeights(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.hidden = nn.Linear(64, 64)
        self.head = nn.Linear(64, 500, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits for each token."""
        logits: torch.Tensor = self.head(torch.tanh(self.hidden(self.embedding(tokens))))
        return logits


class Attention(nn.Module):
    """Causal attention by torch's own kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch × tokens × 64 in and out."""
        heads = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        result: torch.Tensor = self.out(attended.transpose(1, 2).flatten(-2))
        return result


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 8))
    model[0].requires_grad_(False)
    return model


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.Flatten(),
        nn.LazyLinear(10),
    )


def _training(model: nn.Module, *shape: int, make: Callable[..., torch.Tensor] = torch.randn) -> Training:
    model(make(*shape))
    trained = [p for p in model.parameters() if p.requires_grad]
    return Training(model, torch.optim.AdamW(trained), lambda: make(*shape))


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(500, shape)


def trainings() -> Iterator[tuple[str, Training]]:
    """Each by its name, made from the same seed, after two steps."""
    mlp = [nn.Linear(128, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 128), nn.GELU(), nn.Linear(128, 8)]
    made: dict[str, Callable[[], Training]] = {
        "MLP": lambda: _training(nn.Sequential(*mlp), 64, 128),
        "CNN with batch norm": lambda: _training(_cnn(), 16, 3, 32, 32),
        "LSTM": lambda: _training(nn.LSTM(16, 32, 2, batch_first=True), 8, 20, 16),
        "transformer": lambda: _training(Transformer(is_checkpointed=False), 8, 32, 64),
        "transformer, checkpointed": lambda: _training(Transformer(is_checkpointed=True), 8, 32, 64),
        "tied weights": lambda: _training(TiedWeights(), 8, 32, make=_tokens),
        "frozen parameters": lambda: _training(_frozen(), 64, 128),
        "attention": lambda: _training(Attention(), 8, 64, 64),
    }
    for name, make in made.items():
        torch.manual_seed(0)
        training = make()
        training.step()
        training.step()
        yield name, training


class _EmptyMode(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def allocator_peak(work: Callable[[], None]) -> int:
    """The most bytes that the CPU's allocator gives and has not taken back while `work` runs.

    Replayed from what it tells `torch.profiler`: bytes that `work` finds allocated are not in it. An empty
    dispatch mode is on, because under any, torch makes a tensor of each Python number once more (8 bytes).
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with _EmptyMode(), torch.profiler.profile(activities=activities, profile_memory=True) as prof:
        work()
    moves = [
        (event.start_time_ns, event.extra_fields.alloc_size)
        for event in _all(prof.profiler.kineto_results.experimental_event_tree())
        if event.tag == torch._C._profiler._EventType.Allocation
    ]
    return max(itertools.accumulate(size for _, size in sorted(moves, key=lambda move: move[0])))


def _all(events: list[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _all(event.children)
