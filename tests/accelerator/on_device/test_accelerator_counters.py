"""An accelerator's counters against what its allocator says itself, after each operator and at the end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import accelerator
import pytest
import torch
from recorded import CollectingExporter, operators, since_start
from torch import nn
from training import MODELS, Block, Truth, batch, said, train

import memexport
from memexport.model import Device, EventKind
from memexport.tracker import allocator_stats


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    gc.collect()
    for index in (0, 1):
        torch.accelerator.synchronize(index)
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(0)
    yield
    gc.collect()


def counters(event: SimpleNamespace) -> tuple[int, int, int]:
    return event.allocated_bytes, event.active_bytes, event.reserved_bytes


def assert_counters_are_true(exporter: CollectingExporter, truth: Truth) -> list[SimpleNamespace]:
    """Every operator of an accelerator carries what its allocator said right after it."""
    ours = operators(since_start(exporter.events()))
    told = [(e.name, counters(e)) for e in ours if e.device != "cpu"]
    true = zip(ours, truth.seen[-len(ours) :], strict=True)
    assert told == [(name, said_there[e.device]) for e, (name, said_there) in true if e.device != "cpu"]
    assert told
    return ours


def test_torch_takes_it_for_an_accelerator() -> None:
    threads = []
    assert torch.accelerator.current_accelerator() == torch.device("accel")
    assert torch.accelerator.device_count() == 2
    before = torch.accelerator.memory_allocated()
    x = torch.ones(100, device="accel", requires_grad=True)
    assert torch.accelerator.memory_allocated() - before == 512
    (x * 2).register_hook(lambda _: threads.append(threading.get_ident()))
    y = x * 2
    y.register_hook(lambda _: threads.append(threading.get_ident()))
    y.sum().backward()
    assert threads and threading.get_ident() not in threads


@pytest.mark.parametrize("name", MODELS)
def test_each_operator_carries_what_the_allocator_says_after_it(name: str) -> None:
    before = said(0)[0]
    with Truth() as truth:
        exporter, _, tracker = train(name, "accel:0")
    assert_counters_are_true(exporter, truth)
    device = tracker.summary().devices["accel:0"]
    assert device.allocated is not None
    assert device.allocated.peak == torch.accelerator.max_memory_allocated(0)
    assert sum(device.categories_at_peak.values()) == device.allocated.peak
    assert tracker.summary().warnings == ()
    del exporter, tracker, _
    gc.collect()
    assert said(0)[0] == before


@pytest.mark.parametrize("name", MODELS)
def test_what_is_tracked_is_never_more_than_the_allocator_has(name: str) -> None:
    exporter, _, _ = train(name, "accel:0")
    live = 0
    for event in exporter.events():
        if event.device != "accel:0":
            continue
        if event.kind in (EventKind.ALLOCATION, EventKind.RELEASE):
            live += event.size_bytes if event.kind is EventKind.ALLOCATION else -event.size_bytes
        elif event.kind is EventKind.OPERATOR:
            assert live <= event.allocated_bytes


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_with_and_without_a_tracker(name: str) -> None:
    _, tracked, _ = train(name, "accel:0")
    _, plain, _ = train(name, "accel:0", tracked=False)
    for ours, theirs in zip(tracked.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class Split(nn.Module):
    """A block on each device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block().to("accel:0"), Block().to("accel:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to("accel:1"))


def test_a_model_on_two_devices_has_the_counters_of_both() -> None:
    model, exporter = Split(), CollectingExporter()
    optimizer = torch.optim.Adam(model.parameters())
    with Truth() as truth, memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]) as tracker:
        for _ in range(2):
            model(batch("split", "accel:0")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()
    ours = assert_counters_are_true(exporter, truth)
    backward = {(e.device, e.module.split(".")[0]) for e in ours if e.phase.name == "BACKWARD" and e.module}
    assert {("accel:0", "first"), ("accel:1", "second")} <= backward
    assert len({e.thread for e in ours if e.phase.name == "BACKWARD"}) == 2
    for device in ("accel:0", "accel:1"):
        usage = tracker.usage("peak")[device]
        assert usage["parameter"] == sum(p.nbytes for p in model.first.parameters())
        assert usage["optimizer_state"] > 2 * usage["parameter"] - 1


def test_lower_precision_and_a_scaler_change_nothing_of_it() -> None:
    model, exporter = Block().to("accel"), CollectingExporter()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("accel")
    with Truth() as truth, memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]) as tracker:
        for _ in range(2):
            with torch.autocast("accel", dtype=torch.bfloat16):
                loss = model(batch("block", "accel")).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            tracker.step()
    ours = assert_counters_are_true(exporter, truth)
    assert any(e.module == "mix" and e.name == "aten._to_copy.default" for e in ours)


def test_memory_that_a_stream_still_uses_is_active_and_not_allocated() -> None:
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]):
        lent, other = torch.ones(1000, device="accel"), torch.ones(1, device="accel")
        lent.record_stream(torch.accelerator.current_stream())
        del lent
        other.add_(1)
        torch.accelerator.synchronize()
        other.add_(1)
    during, after = [e for e in operators(exporter.events()) if e.name == "aten.add_.Tensor"]
    assert during.active_bytes - during.allocated_bytes == 4096
    assert after.active_bytes == after.allocated_bytes == during.allocated_bytes
    assert after.reserved_bytes == during.reserved_bytes


def test_a_view_costs_no_reading_unless_something_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = []
    read = torch._C._accelerator_getDeviceStats
    monkeypatch.setattr(
        torch._C, "_accelerator_getDeviceStats", lambda index: readings.append(index) or read(index)
    )
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]):
        x, y = torch.ones(8, 8, device="accel"), torch.ones(1000, device="accel")
        before = len(readings)
        views = [x.t(), x.view(64), x[0]]
        assert len(readings) == before
        del y
        views.append(x.t())
        assert len(readings) == before + 1
    first, *_, last = [e for e in operators(exporter.events()) if e.name.startswith("aten.t.")]
    assert first.allocated_bytes - last.allocated_bytes == 4096


def test_storages_that_are_resized_are_followed() -> None:
    exporter = CollectingExporter()
    with Truth() as truth, memexport.Tracker(exporters=[exporter]):
        x, other = torch.ones(1000, device="accel"), torch.ones(1, device="accel")
        x.untyped_storage().resize_(0)
        other.view(1)
        other.add_(1)
        x.untyped_storage().resize_(4000)
        other.add_(1)
    ours = assert_counters_are_true(exporter, truth)
    _, full, empty, emptied, filled = [e.allocated_bytes for e in ours][-5:]
    assert (full - empty, empty, filled - emptied) == (4096, emptied, 4096)


def test_a_device_is_described() -> None:
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]):
        torch.ones(1, device="accel:1")
    assert Device("accel", 1, capacity_bytes=1 << 30) in exporter.info.devices


def test_retries_are_those_of_the_recording() -> None:
    def retry() -> None:
        with accelerator.capacity(0, said(0)[0] + 8192):
            torch.ones(1500, device="accel")
            torch.ones(1000, device="accel")

    retry()
    with memexport.Tracker() as tracker:
        pass
    assert tracker.summary().alloc_retries is None
    with memexport.Tracker() as tracker:
        retry()
    assert (tracker.summary().alloc_retries, tracker.summary().ooms) == (1, 0)


def test_steps_that_are_not_recorded_in_detail_have_readings_of_both_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memexport.tracker.step_counters._SHARE", 0)
    model, exporter = Split(), CollectingExporter()
    with memexport.Tracker(model, exporters=[exporter], every=4) as tracker:
        for step in range(6):
            model(batch("split", "accel:0")).sum().backward()
            kept = torch.ones(1000 * step, device="accel:1")
            tracker.step()
    samples = [e for e in exporter.events() if e.kind is EventKind.SAMPLE and e.device == "accel:1"]
    assert {e.step for e in samples} >= {1, 2, 3, 5}
    assert tracker.summary().devices["accel:1"].allocated.end == said(1)[0]
    assert not [w for w in tracker.summary().warnings if "for a moment" in w]
    del kept


@pytest.mark.parametrize("device", [None, "cuda"], ids=["as-it-says", "cuda"])
def test_a_simulated_run_asks_no_allocator(device: Any) -> None:
    before = said(0)
    with memexport.Tracker(fake=True, device=device) as tracker:
        model = nn.Linear(64, 64, device=device or "accel")
        model(torch.randn(8, 64, device=device or "accel")).sum().backward()
    name = "cuda:0" if device else "accel:0"
    assert tracker.summary().devices[name].allocated.peak > 64 * 64 * 4
    assert said(0) == before


def test_an_allocator_that_cannot_be_asked_has_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise RuntimeError("a pluggable allocator keeps no statistics")

    monkeypatch.setattr(torch._C, "_accelerator_getDeviceStats", refuse)
    assert allocator_stats.stats_reader_of(torch.device("accel", 0)) is None
    with memexport.Tracker() as tracker:
        kept = torch.ones(1000, device="accel")
    assert tracker.usage("peak")["accel:0"]["total"] == kept.nbytes


def test_nothing_is_left_of_a_tracker() -> None:
    train("mlp", "accel:0")
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
