"""What each storage is for: against what torch itself can say of it, at every moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
import torch
from recorded import CollectingExporter, record
from torch import nn
from torch.utils.checkpoint import checkpoint

import memexport
from memexport.model import Category, EventKind
from memexport.tracker import held

Model = Callable[[], nn.Module]


class Checkpointed(nn.Module):
    """A block that is run again in backward, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.second = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=False))


class Tied(nn.Module):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(x).relu())


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(16, 8, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cells(x[:, None, :])[0]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()
    )


def frozen() -> nn.Module:
    model = perceptron()
    model[0].requires_grad_(False)
    return model


def attention() -> nn.Module:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)


MODELS: list[Model] = [perceptron, convolutions, Recurrent, attention, Checkpointed, Tied, frozen]


def nbytes(tensors: Iterable[torch.Tensor | None]) -> int:
    """Of the different storages of these tensors."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def held_after(events: list[SimpleNamespace]) -> list[Counter[Category]]:
    """Bytes by category after each event."""
    live: dict[int, SimpleNamespace] = {}
    sums: Counter[Category] = Counter()
    after = []
    for event in events:
        if event.kind in (EventKind.ALLOCATION, EventKind.RELEASE) and event.address in live:
            gone = live.pop(event.address)
            sums[gone.category] -= gone.size_bytes
            if event.kind is EventKind.RELEASE:
                assert event.category is gone.category
        if event.kind is EventKind.ALLOCATION:
            live[event.address] = event
            sums[event.category] += event.size_bytes
        after.append(sums.copy())
    return after


@pytest.mark.parametrize("known", [True, False], ids=["given", "met"])
@pytest.mark.parametrize("make", MODELS)
def test_what_belongs_to_a_model_and_its_optimizer_is_what_torch_says(make: Model, known: bool) -> None:
    """After each backward and optimizer step, also for a model and optimizer that nobody told it of."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    given = [model] if known else []
    exporter = CollectingExporter()
    truth: dict[str, list[int]] = {}

    def note(moment: str, tracker: memexport.Tracker) -> None:
        tracker.mark(moment)
        states = [
            v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)
        ]
        truth[moment] = [
            nbytes(model.parameters()),
            nbytes(model.buffers()),
            nbytes(p.grad for p in model.parameters()),
            nbytes(states),
        ]

    with memexport.Tracker(*given, exporters=[exporter]) as tracker:
        for step in range(2):
            model(torch.ones(8, 16)).sum().backward()
            note(f"backward {step}", tracker)
            optimizer.step()
            note(f"step {step}", tracker)
            optimizer.zero_grad()
            note(f"zero_grad {step}", tracker)
    events = exporter.events()
    found = {
        event.name: [
            sums[category]
            for category in (
                Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE,
            )
        ]
        for event, sums in zip(events, held_after(events), strict=True)
        if event.name in truth
    }  # fmt: skip
    assert found == truth


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("make", MODELS)
def test_categories_add_up_to_allocated_at_every_event(
    make: Model, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when rows are written before their forward or backward is over."""
    if cut:
        monkeypatch.setattr(held, "_MOST_ROWS", 0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)

    def train(tracker: memexport.Tracker) -> None:
        for _ in range(2):
            model(torch.ones(8, 16)).sum().backward()
            tracker.usage()
            optimizer.step()
            optimizer.zero_grad()

    events = record(train, model)
    counted = [
        (e.allocated_bytes, sums.total())
        for e, sums in zip(events, held_after(events), strict=True)
        # "peak" stands after everything else; what a SAMPLE counts besides, no category explains.
        if e.name != "peak" and e.kind is not EventKind.SAMPLE
    ]
    assert len(counted) > 50
    assert all(allocated == total for allocated, total in counted if allocated >= 0)


def allocated_by(events: list[SimpleNamespace], operator: str) -> list[tuple[Category, int]]:
    return [
        (event.category, event.size_bytes)
        for event in events
        if event.kind is EventKind.ALLOCATION and event.name == operator
    ]


def test_what_a_forward_leaves_behind_are_activations() -> None:
    """What it makes and drops is temporary, in forward, when it is run again, and in backward."""
    model = nn.Linear(4, 4)

    def train(_tracker: memexport.Tracker) -> None:
        out = model(torch.ones(2, 4))
        out = (out.mul(2).add(1)).exp()  # exp saves its result; the others save nothing
        out.sum().backward()

    events = record(train, model)
    assert allocated_by(events, "aten.mul.Tensor")[0] == (Category.TEMPORARY, 32)
    assert allocated_by(events, "aten.exp.default") == [(Category.ACTIVATION, 32)]
    gradients = [e for e in events if e.kind is EventKind.ALLOCATION and e.category is Category.GRADIENT]
    assert sorted(e.size_bytes for e in gradients) == [16, 64]
    assert all(e.phase.name == "BACKWARD" and e.name for e in gradients)  # from the moment they are made
    in_backward = [e for e in events if e.kind is EventKind.ALLOCATION and e.phase.name == "BACKWARD"]
    assert {e.category for e in in_backward} == {Category.GRADIENT, Category.TEMPORARY}


def test_what_is_computed_again_is_activation_again() -> None:
    """As long as it waits for its backward."""
    model = Checkpointed()

    def train(_tracker: memexport.Tracker) -> None:
        model(torch.ones(8, 16)).sum().backward()

    again = [
        e for e in record(train, model) if e.phase.name == "RECOMPUTE" and e.kind is EventKind.ALLOCATION
    ]
    assert Category.ACTIVATION in {e.category for e in again}
    assert {e.category for e in again} <= {Category.ACTIVATION, Category.TEMPORARY}


@pytest.mark.parametrize("by_name", [False, True])
def test_what_a_model_is_given_is_input(by_name: bool) -> None:
    """Made by the program itself, and given by position or by name; what it does not get is other."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    model = Model()

    def train(_tracker: memexport.Tracker) -> list[torch.Tensor]:
        batch, target = torch.zeros(3, 4), torch.full((5,), 1.0)
        out = model(x=batch) if by_name else model(batch)
        return [target, out, batch]

    events = record(train, model)
    assert allocated_by(events, "aten.zeros.default") == [(Category.INPUT, 48)]
    assert allocated_by(events, "aten.full.default") == [(Category.OTHER, 20)]


def test_a_model_built_under_the_tracker_has_parameters_from_when_they_are_made() -> None:
    """With the module that they belong to, once it is called."""

    def build(_tracker: memexport.Tracker) -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        model(torch.ones(2, 4))

    events = record(build)
    parameters = [e for e in events if e.kind is EventKind.ALLOCATION and e.category is Category.PARAMETER]
    assert {(e.module, e.size_bytes) for e in parameters} == {("0", 128), ("0", 32), ("1", 32)}
    assert len(parameters) == 4
    assert all(e.name for e in parameters)


def test_what_is_known_too_late_is_said_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The past stays as it was written: the storage is allocated a second time, at the same address."""
    monkeypatch.setattr(held, "_MOST_ROWS", 0)

    def build(tracker: memexport.Tracker) -> None:
        weight = torch.zeros(100)
        tracker.usage()  # writes what there is
        model = nn.Linear(4, 4)
        model.weight = nn.Parameter(weight.reshape(10, 10))
        assert tracker.usage()["cpu"]["parameter"] >= 400

    events = record(build)
    again = [e for e in events if e.kind is EventKind.ALLOCATION and e.size_bytes == 400]
    assert [e.category for e in again] == [Category.OTHER, Category.PARAMETER]
    assert again[0].address == again[1].address
    before = events[events.index(again[1]) - 1]
    assert again[1].allocated_bytes == before.allocated_bytes


def test_accumulated_gradients_stay_gradients_and_zeroed_ones_too() -> None:
    """Neither a second backward nor `zero_grad(set_to_none=False)` makes new ones."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())

    def train(tracker: memexport.Tracker) -> None:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        assert tracker.usage()["cpu"]["gradient"] == 80
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert tracker.usage()["cpu"]["gradient"] == 80
        optimizer.zero_grad()
        assert "gradient" not in tracker.usage()["cpu"]

    record(train, model)


def test_a_gradient_attached_by_hand_is_one_when_the_optimizer_sees_it() -> None:
    """No engine made it."""
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters())

    def train(tracker: memexport.Tracker) -> None:
        model.weight.grad = torch.ones(4, 4)
        optimizer.step()
        assert tracker.usage()["cpu"]["gradient"] == 64

    record(train, model)


def test_parameters_whose_data_is_swapped_are_followed() -> None:
    """As `module.to` does; the old storage is released by then."""
    model = nn.Linear(64, 64, bias=False)

    def train(tracker: memexport.Tracker) -> None:
        model.to(torch.float64)
        model(torch.ones(2, 64, dtype=torch.float64))
        assert tracker.usage()["cpu"]["parameter"] == 64 * 64 * 8

    record(train, model)


def test_mixed_precision_and_gradient_scaling_keep_their_categories() -> None:
    """Casts of weights are activations; the scaler's own tensors are neither state nor gradient."""
    model = nn.Linear(16, 16, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")

    def train(tracker: memexport.Tracker) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 16, requires_grad=True)).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        usage = tracker.usage()["cpu"]
        assert (usage["gradient"], usage["optimizer_state"]) == (1024 + 128, 1024)  # the input has one too

    events = record(train, model)
    assert (Category.ACTIVATION, 512) in allocated_by(events, "aten._to_copy.default")


def test_optimizer_state_is_shown_with_its_parameters_module() -> None:
    """So that a peak is explained module by module."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.Adam(model.parameters())

    def train(_tracker: memexport.Tracker) -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    states = [e for e in record(train, model) if e.category is Category.OPTIMIZER_STATE]
    states = [e for e in states if e.kind is EventKind.ALLOCATION]
    assert {e.module for e in states} == {"0", "1"}


def test_a_forward_inside_an_optimizers_step_knows_its_model_and_inputs() -> None:
    # As Lightning trains, and as LBFGS does: the closure is the optimizer's to call.
    model = nn.Linear(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = torch.randn(3, 4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(given).sum()
        loss.backward()
        return loss

    with memexport.Tracker() as tracker:
        optimizer.step(closure)
    usage = tracker.usage("peak")["cpu"]
    assert usage["parameter"] == (4 * 8 + 8) * 4
    assert usage["input"] == 3 * 4 * 4
