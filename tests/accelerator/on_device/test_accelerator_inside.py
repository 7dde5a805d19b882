"""The highest moment of a device, where it lies inside of an operator: as its allocator says, to the byte."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import accelerator
import pytest
import torch
from recorded import CollectingExporter, operators, since_start
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from training import MODELS, batch, mlp, said, train

import memexport
from memexport.model import EventKind
from memexport.tracker import compiled
from memexport.tracker.oom.report import OomReport

WORKSPACE = 300 << 10


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(0)
    yield
    gc.collect()


def peak() -> int:
    return torch.accelerator.max_memory_allocated(0)


def inside(exporter: CollectingExporter) -> list[SimpleNamespace]:
    """What was found inside of operators."""
    found = since_start(exporter.events())
    return [e for e in found if e.kind is EventKind.SAMPLE and e.name and e.device == "accel:0"]


def recorded(work: Callable[[], object]) -> tuple[CollectingExporter, memexport.Tracker]:
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        work()
    return exporter, tracker


@pytest.mark.parametrize("size", [0, WORKSPACE], ids=["as-large-as-an-input", "large"])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_the_allocators_own(name: str, size: int) -> None:
    with accelerator.workspace(size):
        exporter, _, tracker = train(name, "accel:0")
    summary = tracker.summary()
    device = summary.devices["accel:0"]
    assert device.allocated is not None
    assert device.allocated.peak == tracker.usage("peak")["accel:0"]["total"] == peak()
    assert sum(device.categories_at_peak.values()) == peak()
    assert summary.warnings == ()
    (marker,) = [e for e in exporter.events() if e.name == "peak" and e.device == "accel:0"]
    assert marker.allocated_bytes == peak()


class PeakTruth(TorchDispatchMode):
    """The allocator's peak after each operator, read by torch's public function."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not str(func).startswith(("prim.", "profiler.")):
            self.seen.append((str(func), peak()))
        return result


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_operators_after_which_the_allocator_says_so_first(name: str) -> None:
    with accelerator.workspace(WORKSPACE), PeakTruth() as truth:
        exporter, _, tracker = train(name, "accel:0")
    events = since_start(exporter.events())
    ours = operators(events)
    seen = truth.seen[-len(ours) :]
    assert [e.name for e in ours] == [operator for operator, _ in seen]
    expected = ours[next(at for at, (_, highest) in enumerate(seen) if highest == peak())]
    highest = max(inside(exporter), key=lambda sample: sample.allocated_bytes)
    assert (highest.name, highest.module, highest.phase) == (expected.name, expected.module, expected.phase)
    assert events[events.index(highest) + 1] is expected
    device = tracker.summary().devices["accel:0"]
    assert (device.peak_operator, device.peak_module) == (expected.name, expected.module)


def test_of_what_nobody_knows_the_use_is_shown_as_unattributed() -> None:
    with accelerator.workspace(WORKSPACE):
        exporter, _, tracker = train("mlp", "accel:0", steps=1, optimizer=torch.optim.SGD)
    highest = max(inside(exporter), key=lambda sample: sample.allocated_bytes)
    device = tracker.summary().devices["accel:0"]
    assert (device.peak_operator, device.peak_phase) == ("aten.mm.default", "backward")
    assert device.categories_at_peak["unattributed"] >= WORKSPACE
    # Nothing waited for a stream; and what is reserved for the workspace stays so.
    assert highest.active_bytes == highest.allocated_bytes <= highest.reserved_bytes


def test_a_sample_stands_before_its_operator_which_tells_what_is_left() -> None:
    with accelerator.workspace(WORKSPACE):
        exporter, _, _ = train("transformer", "accel:0")
    events = since_start(exporter.events())
    samples = [
        at for at, e in enumerate(events) if e.kind is EventKind.SAMPLE and e.name and e.device == "accel:0"
    ]
    assert samples
    for at in samples:
        sample, after = events[at : at + 2]
        assert (after.kind, after.name, after.device) == (EventKind.OPERATOR, sample.name, sample.device)
        assert after.time_unix_ns < sample.time_unix_ns < after.time_unix_ns + after.duration_ns
        assert sample.allocated_bytes > after.allocated_bytes


def test_what_the_program_reads_of_its_peak_is_what_it_is_without_a_tracker() -> None:
    peaks = []
    for tracked in (False, True):
        torch.accelerator.reset_peak_memory_stats(0)
        before = said(0)[0]
        with accelerator.workspace(WORKSPACE):
            kept = train("cnn", "accel:0", tracked=tracked)
        peaks.append(peak() - before)
        del kept
        gc.collect()
    assert peaks[0] == peaks[1]


def test_a_peak_from_before_the_recording_is_not_its() -> None:
    torch.ones(1 << 20, device="accel")
    before = peak()
    exporter, tracker = recorded(lambda: torch.ones(1000, device="accel") + 1)
    assert inside(exporter) == []
    assert tracker.usage("peak")["accel:0"]["total"] < before == peak()
    assert tracker.summary().warnings == ()


def test_after_the_program_reset_its_peak_the_next_ones_are_known() -> None:
    x = torch.ones(10, 10, device="accel")

    def work() -> None:
        torch.ones(1 << 20, device="accel")
        x + 1
        torch.accelerator.reset_peak_memory_stats(0)
        for size in (WORKSPACE, 2 * WORKSPACE, WORKSPACE):
            with accelerator.workspace(size):
                x @ x

    exporter, tracker = recorded(work)
    level = said(0)[0] + 512
    assert [e.allocated_bytes - level for e in inside(exporter)] == [WORKSPACE, 2 * WORKSPACE]
    assert tracker.usage("peak")["accel:0"]["total"] > peak() == level + 2 * WORKSPACE


def test_what_an_operator_took_that_then_failed_is_its() -> None:
    x, reports = torch.ones(500, 500, device="accel"), list[OomReport]()
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter], on_oom=reports.append) as tracker:
        with (
            accelerator.capacity(0, said(0)[0] + WORKSPACE + (64 << 10)),
            accelerator.workspace(WORKSPACE),
            pytest.raises(torch.OutOfMemoryError),
        ):
            torch.mm(x, x)
        level = said(0)
        x + 1
    (sample,) = inside(exporter)[:1]
    assert sample.name == "aten.mm.default"
    assert sample.allocated_bytes == level[0] + WORKSPACE
    assert [tuple(report.counters) for report in reports] == [level]
    assert tracker.usage("peak")["accel:0"]["total"] == peak()


def test_what_a_copy_to_another_device_took_is_the_copys() -> None:
    x = torch.ones(300, 300, device="accel")
    before = said(0)[0]
    exporter, tracker = recorded(lambda: (x.t().cpu(), x.add_(1), x.t().to("accel:1"), x.add_(1)))
    assert [(e.name, e.allocated_bytes - before) for e in inside(exporter)] == [
        ("aten._to_copy.default", 360448)
    ]
    assert tracker.usage("peak")["accel:0"]["total"] == peak()


def test_what_code_without_operators_took_is_not_the_next_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "has_own_kernels", lambda: True)

    def work() -> None:
        with _disable_current_modes():
            y = torch.ones(1 << 18, device="accel")[:10].clone()
        y.add_(1)

    exporter, tracker = recorded(work)
    (sample,) = inside(exporter)
    assert (sample.name, sample.allocated_bytes) == (compiled.UNSEEN, peak())
    assert tracker.summary().devices["accel:0"].peak_operator is None


def test_what_nobody_can_be_found_for_is_the_allocators_peak() -> None:
    def work() -> None:
        torch.ones(1, device="accel")
        with _disable_current_modes():
            torch.ones(1 << 18, device="accel")

    exporter, tracker = recorded(work)
    assert [e.name for e in inside(exporter)] == ["allocator peak"]
    assert tracker.usage("peak")["accel:0"]["total"] == peak()


def test_a_pause_is_not_the_next_operators() -> None:
    model, exporter = mlp().to("accel"), CollectingExporter()
    with accelerator.workspace(WORKSPACE), memexport.Tracker(model, exporters=[exporter], every=2) as tracker:
        for _ in range(4):
            model(batch("mlp", "accel")).sum().backward()
            tracker.step()
            torch.ones(1 << 20, device="accel")
    found = inside(exporter)
    assert tracker.usage("peak")["accel:0"]["total"] == peak()
    assert {e.name for e in found if e.allocated_bytes > WORKSPACE + (1 << 20)} == {"allocator peak"}


def test_both_devices_have_their_own() -> None:
    def work() -> None:
        for index in (0, 1):
            x = torch.ones(10, 10, device=f"accel:{index}")
            with accelerator.workspace((index + 1) * WORKSPACE):
                x @ x

    torch.accelerator.reset_peak_memory_stats(1)
    exporter, tracker = recorded(work)
    names = ("accel:0", "accel:1")
    peaks = [tracker.usage("peak")[name]["total"] for name in names]
    assert peaks == [torch.accelerator.max_memory_allocated(index) for index in (0, 1)]
    assert [e.device for e in operators(exporter.events()) if e.name == "aten.mm.default"] == list(names)


def test_events_kept_for_the_moment_of_failure_say_the_same() -> None:
    x = torch.ones(10, 10, device="accel")
    with memexport.Tracker(on_oom=lambda _: None) as tracker, accelerator.workspace(WORKSPACE):
        x @ x
    assert tracker.usage("peak")["accel:0"]["total"] == peak()
    assert tracker.summary().devices["accel:0"].peak_operator == "aten.mm.default"
