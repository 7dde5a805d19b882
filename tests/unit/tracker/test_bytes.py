"""How many bytes? The tracker's counters against independent sums, and fake runs against real ones."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import CollectingExporter, operators, record, since_start
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import memexport
from memexport.demo import SmallTransformer
from memexport.model import Category, EventKind


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for _ in range(steps):
        tokens = torch.randint(512, (2, 9))
        logits = model(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


class LiveSum(TorchDispatchMode):
    """Sums up the live storages after every operator, its own way: strong handles to none, all by pointer.

    Follows every storage that comes out of an operator and asks torch's own reference count whether it still
    lives, instead of waiting to be told.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums: list[int] = []
        self.weak: dict[int, tuple[int, int]] = {}
        for candidate in gc.get_objects():
            if issubclass(type(candidate), torch.Tensor):
                self.follow(candidate)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "profiler":  # an annotation, not an operator
            return result
        for tensor in _flat(result):
            self.follow(tensor)
        self.sums.append(self.total())
        return result

    def follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.weak[storage._weak_ref()] = (storage._cdata, storage.nbytes())

    def total(self) -> int:
        alive = {
            pointer: size
            for weak, (pointer, size) in self.weak.items()
            if not torch.UntypedStorage._expired(weak)
        }
        return sum(alive.values())


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)


def check_consistency(events: list[SimpleNamespace]) -> None:
    """What must hold of every CPU recording: counters follow from sizes, the peak from the counters."""
    level = 0
    live: dict[int, int] = {}
    for event in events:
        if event.kind is EventKind.ALLOCATION and event.address in live:
            # Said anew, as happens when a flush lies between it and what tells its category.
            assert live[event.address] == event.size_bytes
        elif event.kind is EventKind.ALLOCATION:
            level += event.size_bytes
            live[event.address] = event.size_bytes
        elif event.kind is EventKind.RELEASE:
            level -= event.size_bytes
            assert live.pop(event.address) == event.size_bytes
        if event.kind in (EventKind.ALLOCATION, EventKind.RELEASE, EventKind.OPERATOR):
            assert event.allocated_bytes == event.active_bytes == level == sum(live.values())
            assert event.reserved_bytes == -1


def test_at_every_operator_allocated_is_what_torch_says_is_alive() -> None:
    model = SmallTransformer(32)
    optimizer = torch.optim.AdamW(model.parameters())
    oracle, exporter = LiveSum(), CollectingExporter()
    with memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]), oracle:
        train(model, optimizer)
    measured = [event.allocated_bytes for event in operators(exporter.events())]
    assert len(measured) > 300
    assert measured == oracle.sums


def test_counters_follow_from_sizes_and_the_peak_from_the_counters() -> None:
    model = SmallTransformer(32)
    optimizer = torch.optim.AdamW(model.parameters())
    exporter = CollectingExporter()
    with memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]) as tracker:
        train(model, optimizer)
    events = exporter.events()
    check_consistency(events)
    highest = max(e.allocated_bytes for e in events if e.kind is not EventKind.MARKER)
    (peak,) = [e for e in events if e.name == "peak"]
    assert peak.allocated_bytes == highest == tracker.usage("peak")["cpu"]["total"]
    assert tracker.summary().to_dict()["devices"]["cpu"]["allocated"]["peak"] == highest


def test_an_operators_size_is_what_it_allocated_less_what_was_released_in_it() -> None:
    def work(_: memexport.Tracker) -> None:
        x = torch.ones(1000)
        del x
        torch.ones(10)

    events = [
        e for e in record(work) if e.kind in (EventKind.ALLOCATION, EventKind.RELEASE, EventKind.OPERATOR)
    ]
    seen = [(e.kind.name, e.name, e.size_bytes) for e in events if e.name == "aten.ones.default"]
    assert seen == [
        ("ALLOCATION", "aten.ones.default", 4000),
        ("OPERATOR", "aten.ones.default", 4000),
        ("RELEASE", "aten.ones.default", 4000),
        ("ALLOCATION", "aten.ones.default", 40),
        ("OPERATOR", "aten.ones.default", 40),
        ("RELEASE", "aten.ones.default", 40),
    ]


def test_what_lives_before_the_start_is_the_level_that_recording_starts_from() -> None:
    script = """
import torch, memexport
from torch import nn
model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(4, 10)).sum().backward(); optimizer.step()
kept = torch.ones(1000)
with memexport.Tracker(model, optimizer=optimizer) as tracker:
    pass
print(tracker.usage("current"))
print(tracker.summary().to_dict()["devices"]["cpu"]["allocated"])
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    usage, allocated = output.splitlines()
    parameters = (10 * 10 + 10 + 10 + 10) * 4
    steps = 4 * 4
    expected = {
        "parameter": parameters,
        "gradient": parameters,
        "optimizer_state": 2 * parameters + steps,
        "buffer": 2 * 40 + 8,
        "unattributed": 4000,
    }
    total = sum(expected.values())
    assert eval(usage) == {"cpu": {**expected, "total": total}}
    assert eval(allocated) == {"start": total, "peak": total, "end": total}


def test_a_resized_storage_counts_with_its_new_size() -> None:
    def work(_: memexport.Tracker) -> None:
        x = torch.empty(10)
        x.resize_(100)
        x.resize_(20)  # keeps its storage
        del x

    events = record(work)
    check_consistency(events)
    sizes = [
        (e.kind.name, e.size_bytes)
        for e in since_start(events)
        if e.size_bytes in (40, 400) and e.kind.name != "OPERATOR"
    ]
    assert sizes == [("ALLOCATION", 40), ("RELEASE", 40), ("ALLOCATION", 400), ("RELEASE", 400)]


def test_views_and_in_place_operators_allocate_nothing() -> None:
    def work(_: memexport.Tracker) -> None:
        x = torch.ones(6)
        x.view(2, 3).t().mul_(2).detach()[0]

    events = record(work)
    assert [e.size_bytes for e in operators(events)][1:] == [0] * (len(operators(events)) - 1)


def test_inputs_that_no_operator_made_are_met_where_a_model_takes_them() -> None:
    model = nn.Linear(4, 4)
    storage = torch.UntypedStorage(64)

    def work(_: memexport.Tracker) -> None:
        x = torch.Tensor()
        x.set_(torch.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True), 0, (4, 4))
        model(x)

    events = record(work, model)
    check_consistency(events)
    assert any(e.kind is EventKind.ALLOCATION and e.size_bytes == 64 for e in since_start(events))


def test_sparse_and_meta_tensors_do_no_harm() -> None:
    def work(_: memexport.Tracker) -> None:
        torch.eye(3).to_sparse().coalesce().to_dense()
        torch.empty(1 << 40, device="meta").add(1)

    events = record(work)
    check_consistency(events)
    assert max(e.size_bytes for e in since_start(events)) < 10_000


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def _conv_work(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        model(torch.ones(2, 3, 12, 12)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _events_of_a_run(make: Callable[[], nn.Module], work: Callable[..., None]) -> list[tuple[Any, ...]]:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    events = record(lambda _: work(model, optimizer), model, optimizer=optimizer)
    check_consistency(events)
    start = next(i for i, e in enumerate(events) if e.name == "start")
    before = events[start - 1].allocated_bytes if start else 0
    models_own = [e for e in events[:start] if e.category is Category.PARAMETER]
    return [(e.kind, e.module, e.size_bytes) for e in models_own] + [
        (e.kind, e.name, e.module, e.phase, e.size_bytes, e.allocated_bytes - before)
        for e in events[start:]
        if e.kind in (EventKind.OPERATOR, EventKind.ALLOCATION, EventKind.RELEASE)
    ]


@pytest.mark.parametrize(
    ("make", "work"),
    [
        (lambda: SmallTransformer(32), train),
        (ConvNet, _conv_work),
        (lambda: nn.Linear(3, 3), lambda m, o: m(torch.ones(2, 3))),
    ],
    ids=["transformer", "convnet", "linear"],
)
def test_a_fake_run_gives_the_numbers_of_the_real_one(
    make: Callable[[], nn.Module], work: Callable[..., None]
) -> None:
    real = _events_of_a_run(make, work)
    with FakeTensorMode():
        fake = _events_of_a_run(make, work)
    assert _highest(fake) == _highest(real)
    assert [e for e in fake if e[0] is EventKind.OPERATOR] == [e for e in real if e[0] is EventKind.OPERATOR]


def _highest(events: list[tuple[Any, ...]]) -> int:
    return max(event[-1] for event in events if len(event) == 6)


def test_a_fake_run_on_a_device_that_is_not_there_counts_that_device() -> None:
    exporter = CollectingExporter()
    with FakeTensorMode():
        # All that a CPU build of torch can simulate there.
        weight = nn.Parameter(torch.empty(4, 4, device="cuda"))
        model = nn.Linear(4, 4, device="meta", bias=False)
        model.weight = weight
        with memexport.Tracker(model, exporters=[exporter]) as tracker:
            torch.empty(2, 4, device="cuda")
    assert tracker.usage("current") == {"cuda:0": {"parameter": 64, "total": 64}}
    empty = next(e for e in operators(exporter.events()) if e.name == "aten.empty.memory_format")
    assert (empty.device, empty.size_bytes, empty.allocated_bytes, empty.reserved_bytes) == (
        "cuda:0",
        32,
        96,
        -1,
    )
