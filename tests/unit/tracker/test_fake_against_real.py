"""A simulated run says what the real one says, operator by operator, to the byte."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import CollectingExporter, operators, since_start
from torch import nn
from torch.utils.checkpoint import checkpoint

import memexport
from memexport.demo import SmallTransformer
from memexport.model import EventKind


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 32, num_layers=2), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.lstm(x)[0])
        return result


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(16, 64)
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        return result


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.embedding(x))
        return result


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    model[0].requires_grad_(False)
    return model


def floats(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


def tokens(vocabulary: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(vocabulary, shape)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)), floats(8, 16)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)
        ),
        floats(2, 3, 16, 16),
    ),
    "lstm": (LSTM, floats(5, 2, 16)),
    "transformer": (lambda: SmallTransformer(32), tokens(512, 4, 16)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), floats(2, 8, 16)),
    "checkpointed": (lambda: Checkpointed(reentrant=False), floats(8, 16)),
    "checkpointed again and again": (lambda: Checkpointed(reentrant=True), floats(8, 16)),
    "tied": (Tied, tokens(50, 4, 6)),
    "frozen": (frozen, floats(8, 16)),
}


def train(make: Callable[[], nn.Module], batch: Callable[[], torch.Tensor], tracker: Any) -> None:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(2):
        loss = model(batch()).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        tracker.step()


def recorded(name: str, **options: Any) -> tuple[list[SimpleNamespace], int]:
    """The events of a training, with counters from 0 at the start, and the peak.

    Not the one inside an operator (a SAMPLE), of which a simulation cannot know.
    """
    gc.collect()
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter], **options) as tracker:
        train(*CASES[name], tracker)
    events = exporter.events()
    before = sum(e.size_bytes for e in events[: -len(since_start(events))] if e.kind is EventKind.ALLOCATION)
    for event in events:
        event.allocated_bytes -= before
    kinds = (EventKind.ALLOCATION, EventKind.OPERATOR)
    return since_start(events), max(e.allocated_bytes for e in since_start(events) if e.kind in kinds)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_operator_allocates_what_the_real_one_allocates(name: str) -> None:
    real, real_peak = recorded(name)
    fake, fake_peak = recorded(name, fake=True)
    curves = [
        [
            (e.name, e.module, e.phase, e.size_bytes, e.allocated_bytes)
            for e in operators(events)
            if e.name != "aten.detach.default"  # a simulated Parameter is made by it; it allocates nothing
        ]
        for events in (real, fake)
    ]
    assert curves[1] == curves[0] != []
    assert fake_peak == real_peak > 0
