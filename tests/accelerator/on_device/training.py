"""Models that train for a few steps, on any device, with what was to be seen of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from recorded import CollectingExporter
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import memexport


class Block(nn.Module):
    """Attention written out, and a feed-forward part, each with a norm before it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.norm(x)).chunk(3, -1)
        weights = torch.softmax(query @ key.transpose(-1, -2) / 4.0, -1)
        x = x + self.out(weights @ value)
        return x + self.feed(self.norm2(x))


class Checkpointed(nn.Module):
    """Two blocks that run again in backward, and a head."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 1)
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1.5
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self._reentrant)
        return self.head(x)


class Recurrent(nn.Module):
    """A recurrent layer whose last state goes through a head."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.RNN(16, 8, num_layers=2), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0][-1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(inplace=True), nn.Linear(64, 16), nn.Tanh())


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": lambda: nn.Sequential(Block(), Block()),
    "checkpoint": lambda: Checkpointed(reentrant=False),
    "reentrant-checkpoint": lambda: Checkpointed(reentrant=True),
    "recurrent": Recurrent,
}


class Truth(TorchDispatchMode):
    """What the allocators say after each operator, read by torch's public function."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, tuple[int, int, int]]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not str(func).startswith(("prim.", "profiler.")):
            self.seen.append((str(func), {f"accel:{index}": said(index) for index in (0, 1)}))
        return result


def said(index: int) -> tuple[int, int, int]:
    """Allocated, active and reserved bytes of a device."""
    stats = torch.accelerator.memory_stats(index)
    return tuple(stats[f"{name}_bytes.all.current"] for name in ("allocated", "active", "reserved"))


def batch(name: str, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (2, 1, 8, 8) if name == "cnn" else (6, 4, 16)
    return torch.randn(shape, generator=generator).to(device).requires_grad_(name == "reentrant-checkpoint")


def train(
    name: str,
    device: str,
    steps: int = 3,
    tracked: bool = True,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    capture: Any = "operators",
) -> tuple[CollectingExporter, nn.Module, memexport.Tracker]:
    """Train one of `MODELS` for some steps, two batches each."""
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    steps_of = optimizer(model.parameters(), lr=1e-2, foreach=True)
    exporter = CollectingExporter()
    tracker = memexport.Tracker(model, optimizer=steps_of, exporters=[exporter], capture=capture)
    if tracked:
        tracker.start()
    for _ in range(steps):
        for _ in range(2):
            model(batch(name, device)).pow(2).mean().backward()
        steps_of.step()
        steps_of.zero_grad()
        tracker.step()
    tracker.stop()
    return exporter, model, tracker
