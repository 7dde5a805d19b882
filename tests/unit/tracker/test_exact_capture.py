"""The allocator's own record is switched on and off, and training notices nothing else."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import pytest
import torch
from recorded import CollectingExporter
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import memexport
from memexport.errors import UsageError
from memexport.tracker import exact_capture, exact_join, exact_record

_autograd: Any = torch._C._autograd


def recording(*modules: nn.Module) -> memexport.Tracker:
    return memexport.Tracker(*modules, capture="allocator")


def is_on() -> bool:
    return bool(_autograd._profiler_enabled())


def train(steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_training_computes_the_same() -> None:
    plain = train()
    with recording():
        assert train() == plain


def test_it_is_on_while_recording_and_off_afterwards() -> None:
    with recording():
        assert is_on()
        train()
        assert is_on()
    assert not is_on()


def test_it_is_off_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), recording():
        _ = 1 / 0
    assert not is_on()


def test_by_default_it_is_never_on() -> None:
    with memexport.Tracker():
        assert not is_on()


def test_a_profiler_works_afterwards(capfd: pytest.CaptureFixture[str]) -> None:
    """What was registered for operators, too, is gone: it would take the next profiler for its own."""
    with recording():
        train()
    with torch.profiler.profile(profile_memory=True) as profiler:
        torch.ones(3)
    assert "aten::ones" in {event.name for event in profiler.events()}
    assert "Exception" not in capfd.readouterr().err


def test_it_can_be_read_any_number_of_times(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(exact_record, "_EVERY_NS", 0)
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter], capture="allocator") as tracker:
        train()
    allocated = tracker.summary().devices["cpu"].allocated
    assert allocated is not None
    assert allocated.end == allocated.start
    with torch.profiler.profile():
        torch.ones(3)
    assert "Exception" not in capfd.readouterr().err


def test_usage_is_up_to_date_at_any_moment() -> None:
    held = torch.ones(10)
    with recording() as tracker:
        before = tracker.usage()["cpu"]["total"] - 40
        held = torch.ones(1000)
        assert tracker.usage()["cpu"]["total"] == before + 4000
        del held
        assert tracker.usage()["cpu"]["total"] == before


def test_in_a_backward_usage_is_that_of_a_moment_before_it() -> None:
    """The autograd engine would go back to what was on when the backward began: it cannot be read there."""
    asked = []
    with recording() as tracker:
        x = torch.ones(1000, requires_grad=True)
        y = x * 2
        asked.append(tracker.usage()["cpu"]["total"])
        y.register_hook(lambda _: asked.append(tracker.usage()["cpu"]["total"]))
        y.sum().backward()
        assert is_on()
        asked.append(tracker.usage()["cpu"]["total"])
    assert asked[0] == asked[1] < asked[2]
    assert not is_on()


def test_a_profiler_that_is_on_is_in_the_way() -> None:
    with torch.profiler.profile(), pytest.raises(UsageError, match="profiler is on"):
        recording().start()
    assert not is_on()


def test_it_has_nothing_to_tell_of_simulated_tensors() -> None:
    with FakeTensorMode(), pytest.raises(UsageError, match="simulated"):
        recording().start()


def test_a_torch_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_autograd, "_enable_profiler_legacy")
    with pytest.raises(UsageError, match=torch.__version__.replace("+", r"\+")):
        recording().start()


def test_a_capture_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="'everything' is not known"):
        memexport.Tracker(capture="everything")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_it_is_off_in_a_forked_child() -> None:
    with recording():
        child = os.fork()
        if child == 0:
            os._exit(1 if is_on() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_on()


def test_an_error_while_reading_it_stops_the_recording_not_the_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: object) -> None:
        raise ValueError("broken")

    plain = train()
    monkeypatch.setattr(exact_capture.AllocatorRecord, "drain", broken)
    monkeypatch.setattr(exact_record, "_EVERY_NS", 0)
    with caplog.at_level(logging.WARNING, "memexport"), recording() as tracker:
        assert train() == plain
        assert not is_on()
    assert "broken" in caplog.text
    assert any("broken" in warning for warning in tracker.summary().warnings)


def test_an_error_in_another_thread_switches_it_off_at_the_next_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: object, chunk: bytes) -> bytes:
        raise ValueError("broken")

    monkeypatch.setattr(exact_join.AllocatorJoin, "add", broken)
    with recording() as tracker:
        torch.ones(3)
        asking = threading.Thread(target=tracker.usage)
        asking.start()
        asking.join()
        assert is_on()
        torch.ones(3)
        assert not is_on()


def test_stopping_it_in_another_thread_switches_it_off_at_the_next_operator() -> None:
    tracker = recording().start()
    stopping = threading.Thread(target=tracker.stop)
    stopping.start()
    stopping.join()
    torch.ones(3)
    assert not is_on()
    torch.utils._python_dispatch._pop_mode()  # it stays there, as by default


def test_the_recording_says_how_it_was_made() -> None:
    options = []
    for capture in ("operators", "allocator"):
        exporter = CollectingExporter()
        with memexport.Tracker(exporters=[exporter], capture=capture):
            pass
        options.append(exporter.info.options["capture"])
    assert options == ["operators", "allocator"]
