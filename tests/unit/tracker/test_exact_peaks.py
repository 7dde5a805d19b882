"""With the allocator's own record, peaks are the allocator's, to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bench.exact_models import Training, allocator_peak, trainings
from recorded import CollectingExporter, operators, since_start
from torch import nn

import memexport
from memexport.model import Category, EventKind, Phase


def record_exactly(work: Callable[[], object], *modules: nn.Module) -> list[SimpleNamespace]:
    exporter = CollectingExporter()
    with memexport.Tracker(*modules, exporters=[exporter], capture="allocator"):
        work()
    return exporter.events()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small are not worth sharing out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=list(trainings()), ids=lambda param: param[0])
def training(request: pytest.FixtureRequest) -> Training:
    """Each of eight models, after two steps."""
    return request.param[1]


def test_the_peak_is_the_allocators(training: Training) -> None:
    def work() -> None:
        torch.manual_seed(1)
        training.step()
        training.step()

    truth = allocator_peak(work)
    with memexport.Tracker(training.model, optimizer=training.optimizer, capture="allocator") as tracker:
        work()
    allocated = tracker.summary().devices["cpu"].allocated
    assert allocated is not None
    assert allocated.peak - allocated.start == truth
    assert allocated.end == allocated.start


def test_the_categories_add_up_after_every_event(training: Training) -> None:
    live: dict[int, int] = {}
    for event in record_exactly(training.step, training.model):
        if event.kind is EventKind.ALLOCATION:
            live[event.address] = event.size_bytes
        elif event.kind is EventKind.RELEASE:
            assert live.pop(event.address) == event.size_bytes
        if event.allocated_bytes >= 0 and event.kind is not EventKind.MARKER:
            assert sum(live.values()) == event.allocated_bytes


def test_the_rest_is_told_as_by_default(training: Training) -> None:
    def what_ran(events: list[SimpleNamespace]) -> list[tuple[object, ...]]:
        return [(e.name, e.module, e.phase, e.step, e.size_bytes) for e in operators(events)]

    default = CollectingExporter()
    with memexport.Tracker(training.model, exporters=[default]):
        training.step()
    exact = record_exactly(training.step, training.model)
    assert what_ran(exact) == what_ran(default.events())
    spans = [(e.name, e.module, e.phase) for e in exact if e.kind is EventKind.SPAN]
    assert spans == [(e.name, e.module, e.phase) for e in default.events() if e.kind is EventKind.SPAN]


def test_each_storage_has_the_category_that_it_has_by_default(training: Training) -> None:
    def bytes_at_the_end_of_forward(capture: str) -> dict[Category, int]:
        exporter = CollectingExporter()
        with memexport.Tracker(training.model, exporters=[exporter], capture=capture) as tracker:
            torch.manual_seed(1)
            output = training.model(training.make_input())
            output = output[0] if isinstance(output, tuple) else output
            tracker.mark("here")
            output.sum().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
        live: dict[int, tuple[Category, int]] = {}
        for event in exporter.events():
            if event.kind is EventKind.MARKER and event.name == "here":
                break
            if event.kind is EventKind.ALLOCATION:
                # Checkpointing keeps the generator's state, which it does not get from an operator.
                size = 0 if event.name == "(no operator)" else event.size_bytes
                live[event.address] = event.category, size
            elif event.kind is EventKind.RELEASE:
                del live[event.address]
        return {c: sum(n for found, n in live.values() if found is c) for c, _ in live.values()}

    assert bytes_at_the_end_of_forward("allocator") == bytes_at_the_end_of_forward("operators")


def test_what_an_lstm_uses_inside_is_temporary_and_of_its_operator() -> None:
    model = nn.LSTM(16, 32)
    x = torch.randn(20, 8, 16)
    events = since_start(record_exactly(lambda: model(x)[0].sum().backward(), model))
    inside = [
        e
        for e in events
        if e.kind is EventKind.ALLOCATION and e.name == "aten.mkldnn_rnn_layer_backward.default"
    ]
    assert {(e.module, e.phase) for e in inside} == {("LSTM", Phase.BACKWARD)}
    assert {e.category for e in inside} == {Category.TEMPORARY, Category.GRADIENT}
    assert sum(e.size_bytes for e in inside if e.category is Category.TEMPORARY) > 100_000


def test_an_operators_net_change_does_not_count_what_it_gave_back() -> None:
    events = record_exactly(lambda: torch.ones(1000) + 1)
    (add,) = [e for e in operators(events) if e.name == "aten.add.Tensor"]
    of_add = [e for e in since_start(events) if e.name == "aten.add.Tensor" and e is not add]
    assert [e.size_bytes for e in of_add if e.kind is EventKind.ALLOCATION] == [8, 4, 4000]
    assert add.size_bytes == 4000


def test_what_is_allocated_outside_of_operators_is_seen() -> None:
    events = record_exactly(lambda: torch.UntypedStorage(12_345))
    (found,) = [e for e in events if e.size_bytes == 12_345 and e.kind is EventKind.ALLOCATION]
    assert found.name == "(no operator)"
    assert [e.size_bytes for e in events if e.kind is EventKind.RELEASE][-1] == 12_345


def test_tensors_whose_memory_is_not_the_allocators_count_as_by_default() -> None:
    array = np.ones(3000, np.float32)
    events = since_start(record_exactly(lambda: torch.from_numpy(array).view(-1).sum()))
    assert 12_000 in [e.size_bytes for e in events if e.kind is EventKind.ALLOCATION]
    assert 12_000 in [e.size_bytes for e in events if e.kind is EventKind.RELEASE]


def test_what_lived_before_and_dies_is_released_once() -> None:
    for _ in range(2):  # by the second time, the allocator remembers the size from the first
        held = [torch.ones(5000)]
        with memexport.Tracker(capture="allocator") as tracker:
            held.append(torch.ones(5000))
            held.clear()
            torch.ones(3)
        allocated = tracker.summary().devices["cpu"].allocated
        assert allocated is not None
        assert allocated.start - allocated.end == 20_000
        assert allocated.peak - allocated.start == 20_000


def test_a_storage_that_is_resized_changes_its_memory() -> None:
    def work() -> None:
        storage = torch.ones(1000).untyped_storage()
        storage.resize_(0)
        torch.ones(3)
        storage.resize_(8000)
        torch.ones(4)

    sizes = [
        e.size_bytes if e.kind is EventKind.ALLOCATION else -e.size_bytes
        for e in since_start(record_exactly(work))
        if e.kind in (EventKind.ALLOCATION, EventKind.RELEASE)
    ]
    assert sizes == [4000, -4000, 12, -12, 8000, 16, -16, -8000]


def test_stacks_are_those_of_the_operators() -> None:
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter], capture="allocator", record_stacks=True):
        torch.ones(1000) + 1
    events = since_start(exporter.events())
    inside = [e for e in events if e.name == "aten.add.Tensor" and e.kind is EventKind.ALLOCATION]
    assert len({e.stack for e in inside}) == 1
    assert inside[0].stack
