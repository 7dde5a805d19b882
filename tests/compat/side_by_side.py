"""Models, and what torch's tracker and ours say of the same work on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._tools import mem_tracker
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memexport import compat

Theirs: Any = mem_tracker.MemTracker
Ours: Any = compat.MemTracker
Snapshots = dict[str, Any]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


class Convolutional(nn.Module):
    """Convolutions with batch norm, whose running averages are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3), nn.Linear(8 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.first(x)))
        return self.head(functional.relu(self.second(x)).flatten(1))


class Recurrent(nn.Module):
    """Two LSTM layers; only part of what they return is used."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, num_layers=2, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0])


class Checkpointed(nn.Module):
    """A block that is run again in backward, between two that are not."""

    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.embed = nn.Linear(16, 16)
        self.first = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.second = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(checkpoint(self.first, self.embed(x), use_reentrant=self.reentrant))


class Tied(nn.Module):
    """One parameter in two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


class Looped(nn.Module):
    """A module that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        return self.head(x)


class Dicts(nn.Module):
    """Takes a dict and returns one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        hidden = functional.relu(self.first(values["x"]))
        return {"out": self.second(hidden + values["y"].sum()), "aux": values["y"] * 2}


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    return model


def regularized() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.Dropout(), nn.LayerNorm(32), nn.Linear(32, 4))


def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)


@dataclass(frozen=True)
class Case:
    """How to make a model and what it is called with."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]


def _rows() -> tuple[Any, ...]:
    return (torch.randn(8, 16),)


CASES = {
    "mlp": Case(mlp, _rows),
    "convolutions with batch norm": Case(Convolutional, lambda: (torch.randn(4, 3, 8, 8),)),
    "lstm": Case(Recurrent, lambda: (torch.randn(4, 5, 8),)),
    "transformer": Case(transformer, lambda: (torch.randn(4, 6, 16),)),
    "checkpointing": Case(Checkpointed, _rows),
    "reentrant checkpointing": Case(lambda: Checkpointed(reentrant=True), _rows),
    "tied weights": Case(Tied, lambda: (torch.randint(20, (4, 6)),)),
    "a module called in a loop": Case(Looped, _rows),
    "dicts in and out": Case(
        Dicts, lambda: ({"x": torch.randn(8, 16), "y": torch.randn(8, 4, requires_grad=True)},)
    ),
    "dropout and layer norm": Case(regularized, _rows),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD with momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": torch.optim.AdamW,
}


def loss_of(output: Any) -> torch.Tensor:
    return sum(v.sum() for v in output.values()) if isinstance(output, dict) else output.sum()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, _tracker: Any) -> None:
    loss_of(model(*inputs)).backward()
    optimizer.step()
    optimizer.zero_grad()


def accumulate(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any, tracker: Any) -> None:
    for _ in range(2):
        tracker.reset_mod_stats()  # torch's refuses a second iteration otherwise
        loss_of(model(*inputs)).backward()
    optimizer.step()


def evaluate(model: nn.Module, _optimizer: torch.optim.Optimizer, inputs: Any, _tracker: Any) -> None:
    with torch.no_grad():
        model(*inputs)


def backward_only(model: nn.Module, _optimizer: torch.optim.Optimizer, inputs: Any, _tracker: Any) -> None:
    loss_of(model(*inputs)).backward()


def functional_gradients(
    model: nn.Module, _optimizer: torch.optim.Optimizer, inputs: Any, tracker: Any
) -> None:
    tracker.kept = torch.autograd.grad(loss_of(model(*inputs)), list(model.parameters()))


WORK = {work.__name__: work for work in (step, accumulate, evaluate, backward_only, functional_gradients)}


@dataclass
class Seen:
    """What a tracker said; `alive` keeps the model and optimizer."""

    tracker: Any
    current: Any
    peak: Any
    alive: Any


def watch(
    tracker_class: Any,
    case: Case,
    work: Callable[..., None] = step,
    optimizer: str = "AdamW",
    *,
    external: bool = True,
) -> Seen:
    """What a tracker says of the work on a new model, always the same one."""
    torch.manual_seed(0)
    model, inputs = case.model(), case.inputs()
    made = OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])
    tracker = tracker_class()
    if external:
        tracker.track_external(model, made, *inputs)
    with tracker:
        work(model, made, inputs, tracker)
        current = tracker.get_tracker_snapshot("current")
    return Seen(tracker, current, tracker.get_tracker_snapshot("peak"), (model, made, inputs))


def by_module(tracker: Any) -> dict[str, Any]:
    return {stats.mod_fqn: stats for stats in tracker.memory_tracking.values()}


def snapshots_of(stats: Any) -> Snapshots:
    """Snapshots by the text of their state."""
    return {str(getattr(state, "value", state)): taken for state, taken in stats.snapshots.items()}


def cpu(snapshot: Any) -> dict[str, int]:
    """What a snapshot says of the CPU, by the text of its categories."""
    (row,) = snapshot.values()
    return {str(getattr(name, "value", name)): size for name, size in row.items()}
