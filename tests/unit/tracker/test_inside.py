"""By default, what operators take inside is measured once, and shows where it belongs as unattributed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench.exact_models import Training, allocator_peak, trainings
from recorded import CollectingExporter, operators, record, since_start
from torch import nn

import memexport
from memexport.model import EventKind, Phase
from memexport.tracker import inside


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small are not worth sharing out."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def samples(events: list[SimpleNamespace]) -> list[SimpleNamespace]:
    return [event for event in since_start(events) if event.kind is EventKind.SAMPLE]


def lstm_step() -> tuple[nn.Module, Any]:
    model = nn.LSTM(16, 32)
    x = torch.randn(20, 8, 16)
    return model, lambda _=None: model(x)[0].sum().backward()


def test_the_peaks_of_eight_models_are_the_allocators_to_a_hundredth() -> None:
    off = [peak_off(training) for _, training in trainings()]
    assert max(off) <= 0.01
    assert statistics.median(off) <= 0.001


def peak_off(training: Training) -> float:
    def work() -> None:
        torch.manual_seed(1)
        training.step()
        training.step()

    truth = allocator_peak(work)
    with memexport.Tracker(training.model, optimizer=training.optimizer) as tracker:
        work()
    allocated = tracker.summary().devices["cpu"].allocated
    assert allocated is not None
    return abs(allocated.peak - allocated.start - truth) / truth


def test_the_peak_inside_an_lstm_names_it_and_what_nobody_knows_the_use_of() -> None:
    model, work = lstm_step()
    exporter = CollectingExporter()
    with memexport.Tracker(model, exporters=[exporter]) as tracker:
        work()
    device = tracker.summary().devices["cpu"]
    found = max(samples(exporter.events()), key=lambda sample: sample.allocated_bytes)
    assert device.peak_operator == found.name == "aten.mkldnn_rnn_layer_backward.default"
    assert (device.peak_module, found.module, found.phase) == ("LSTM", "LSTM", Phase.BACKWARD)
    assert device.allocated is not None
    assert device.allocated.peak == found.allocated_bytes
    assert sum(device.categories_at_peak.values()) == device.allocated.peak


def test_a_sample_stands_before_its_operator_which_tells_what_is_left() -> None:
    _, work = lstm_step()
    events = since_start(record(work))
    for at, event in enumerate(events):
        if event.kind is EventKind.SAMPLE:
            after = events[at + 1]
            assert (after.kind, after.name) == (EventKind.OPERATOR, event.name)
            assert after.time_unix_ns < event.time_unix_ns < after.time_unix_ns + after.duration_ns
            assert event.allocated_bytes - after.allocated_bytes >= inside.LEAST_BYTES


def test_later_calls_tell_the_same_without_being_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    plain = inside.Inside.measure

    def counting(self: inside.Inside, call: Any, *arguments: Any) -> Any:
        measured.append(call)
        return plain(self, call, *arguments)

    monkeypatch.setattr(inside.Inside, "measure", counting)
    convolution = nn.Conv2d(3, 8, 3)
    small, large = torch.randn(4, 3, 16, 16), torch.randn(8, 3, 16, 16)
    with torch.no_grad():
        events = record(lambda _: [convolution(x) for x in (small, small, large, small, large)])
    told = [e.allocated_bytes for e in samples(events)]
    left = [e.allocated_bytes for e in operators(since_start(events)) if "convolution" in e.name]
    took = [a - b for a, b in zip(told, left, strict=True)]
    assert measured.count(torch.ops.aten.convolution.default._op) == 2
    assert took[0] == took[1] == took[3] < took[2] == took[4]


def test_operators_that_take_nothing_are_soon_called_as_ever() -> None:
    events = record(lambda tracker: [torch.ones(1000) + 1 for _ in range(10)])
    assert not samples(events)


def test_without_the_allocators_record_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "is_possible", lambda: False)
    _, work = lstm_step()
    events = record(work)
    assert not samples(events)
    assert operators(events)


def test_an_error_of_ours_ends_the_measuring_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no profiler today")

    monkeypatch.setattr(inside._autograd, "_enable_profiler_legacy", fails)
    _, work = lstm_step()
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        work()
    assert not samples(exporter.events())
    assert tracker.summary().warnings == ()


def test_a_users_profiler_goes_undisturbed() -> None:
    _, work = lstm_step()
    with torch.profiler.profile(profile_memory=True) as profiler:
        events = record(work)
    assert not samples(events)
    assert "aten::mkldnn_rnn_layer" in {event.key for event in profiler.key_averages()}


def test_an_operator_that_raises_leaves_no_profiler_on() -> None:
    def work(_: Any) -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        assert not torch._C._autograd._profiler_enabled()

    assert "aten.mm.default" in {event.name for event in operators(record(work))}


def test_gradients_are_those_of_a_run_without_a_tracker() -> None:
    model, work = lstm_step()
    work()
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    record(work)
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(found) == 4
    assert all(map(torch.equal, found, expected))
