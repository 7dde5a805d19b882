"""Programs whose backward is more than a backward: each records what it does on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from recorded import CollectingExporter
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import Checkpointed, mlp

import memexport

Program = Callable[[str, CollectingExporter], None]


class Nested(nn.Module):
    """Reentrant checkpoints beside each other, and checkpoints in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.again = Checkpointed(reentrant=True), Checkpointed(reentrant=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x) + checkpoint(self.again, x, use_reentrant=True)


def sequences(device: str) -> torch.Tensor:
    return torch.randn(3, 4, 16).to(device).requires_grad_()


def nested_checkpoints(device: str, exporter: CollectingExporter) -> None:
    model = Nested().to(device)
    with memexport.Tracker(model, exporters=[exporter]) as tracker:
        for _ in range(2):
            model(sequences(device)).sum().backward()
            tracker.step()


def backward_twice(device: str, exporter: CollectingExporter) -> None:
    model = Checkpointed(reentrant=False).to(device)
    with memexport.Tracker(model, exporters=[exporter]):
        loss = model(sequences(device)).sum()
        loss.backward(retain_graph=True)
        loss.backward()


def penalty_through_checkpoints(device: str, exporter: CollectingExporter) -> None:
    model = Checkpointed(reentrant=False).to(device)
    with memexport.Tracker(model, exporters=[exporter]) as tracker:
        for _ in range(2):
            x = sequences(device)
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            gradient.pow(2).sum().backward()
            tracker.step()


def optimizer_in_backward(device: str, exporter: CollectingExporter) -> None:
    model = mlp().to(device)
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9, foreach=True) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    with memexport.Tracker(model, exporters=[exporter]) as tracker:
        for _ in range(2):
            model(torch.randn(3, 16).to(device)).sum().backward()
            tracker.step()


def activations_on_the_cpu(device: str, exporter: CollectingExporter) -> None:
    model = mlp().to(device)
    with memexport.Tracker(model, exporters=[exporter]):
        with torch.autograd.graph.save_on_cpu():
            loss = model(torch.randn(3, 16).to(device)).sum()
        loss.backward()


def module_in_a_backward_hook(device: str, exporter: CollectingExporter) -> None:
    model, other = mlp().to(device), nn.Linear(16, 4).to(device)

    def call_other(_module: nn.Module, _inputs: object, outputs: tuple[torch.Tensor]) -> None:
        other(outputs[0].detach())

    model[2].register_full_backward_hook(call_other)
    with memexport.Tracker(model, other, exporters=[exporter]):
        model(torch.randn(3, 16).to(device)).sum().backward()


def closure_of_an_optimizer(device: str, exporter: CollectingExporter) -> None:
    model, x = mlp().to(device), torch.randn(3, 16).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss

    with memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]):
        optimizer.step(closure)


PROGRAMS: list[Program] = [
    nested_checkpoints,
    backward_twice,
    penalty_through_checkpoints,
    optimizer_in_backward,
    activations_on_the_cpu,
    module_in_a_backward_hook,
    closure_of_an_optimizer,
]
