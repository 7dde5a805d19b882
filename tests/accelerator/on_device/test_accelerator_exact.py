"""The record of a CUDA device's allocator: every moment of the device to the byte.

What a device's allocator tells arrives as it does from CUDA's: it says that it is one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import accelerator
import pytest
import torch
from recorded import CollectingExporter, operators, since_start
from test_accelerator_attribution import places
from torch.utils._python_dispatch import _disable_current_modes
from training import MODELS, batch, mlp, said, train

import memexport
from memexport.errors import UsageError
from memexport.model import Category, EventKind, Phase
from memexport.tracker import legacy_profiler

WORKSPACE = 300 << 10


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(legacy_profiler, "KNOWN_TYPE", "accel")
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(0)
    with accelerator.told_as_cuda():
        yield
    gc.collect()


def peak() -> int:
    return torch.accelerator.max_memory_allocated(0)


def on_device(exporter: CollectingExporter) -> list[SimpleNamespace]:
    return [e for e in since_start(exporter.events()) if e.device == "accel:0"]


@pytest.mark.parametrize("size", [0, WORKSPACE], ids=["as-large-as-an-input", "large"])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_the_allocators_own(name: str, size: int) -> None:
    with accelerator.workspace(size):
        _, _, tracker = train(name, "accel:0", capture="allocator")
    summary = tracker.summary()
    device = summary.devices["accel:0"]
    assert device.allocated is not None
    assert device.allocated.peak == tracker.usage("peak")["accel:0"]["total"] == peak()
    assert sum(device.categories_at_peak.values()) == peak()
    assert summary.warnings == ()


@pytest.mark.parametrize("name", MODELS)
def test_every_allocation_is_there_with_what_the_allocator_said_then(name: str) -> None:
    model, exporter = MODELS[name]().to("accel:0"), CollectingExporter()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tracker = memexport.Tracker(model, optimizer=optimizer, exporters=[exporter], capture="allocator")
    with accelerator.workspace(WORKSPACE), tracker:
        before = said(0)[0]
        accelerator.take_levels(0)
        for _ in range(3):
            model(batch(name, "accel:0")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        told = accelerator.take_levels(0)
    given = [level for level, last in zip(told, [before, *told], strict=False) if level > last]
    found = on_device(exporter)
    known = [e for e in found if e.allocated_bytes >= 0]
    assert [e.allocated_bytes for e in known if e.kind is EventKind.ALLOCATION] == given
    assert is_part_of([e.allocated_bytes for e in known if e.kind is EventKind.RELEASE], told)
    assert not [e for e in found if e.kind is EventKind.SAMPLE and e.name]
    assert tracker.summary().warnings == ()


def is_part_of(some: list[int], levels: list[int]) -> bool:
    """Whether they are among the levels, in this order."""
    rest = iter(levels)
    return all(one in rest for one in some)


@pytest.mark.parametrize("name", MODELS)
def test_storages_are_live_when_they_are_given_and_never_more_than_there_is(name: str) -> None:
    with accelerator.workspace(WORKSPACE):
        exporter, _, _ = train(name, "accel:0", capture="allocator")
    live = 0
    for event in (e for e in exporter.events() if e.device == "accel:0"):
        if event.kind in (EventKind.ALLOCATION, EventKind.RELEASE):
            live += event.size_bytes if event.kind is EventKind.ALLOCATION else -event.size_bytes
        if event.allocated_bytes >= 0 and event.kind is not EventKind.MARKER:
            assert live <= event.allocated_bytes


@pytest.mark.parametrize("name", MODELS)
def test_the_rest_is_told_as_by_default(name: str) -> None:
    def told(capture: str) -> list[object]:
        found = train(name, "accel:0", capture=capture)[0].events()
        nets = [e.size_bytes for e in operators(found) if e.device == "accel:0"]
        return [places(found), nets]

    assert told("allocator") == told("operators")


def test_a_workspace_is_temporary_and_its_operators() -> None:
    with accelerator.workspace(WORKSPACE):
        exporter, _, tracker = train("mlp", "accel:0", capture="allocator")
    given = [e for e in on_device(exporter) if e.kind is EventKind.ALLOCATION and e.size_bytes == WORKSPACE]
    products = [
        e for e in operators(on_device(exporter)) if e.name in ("aten.mm.default", "aten.addmm.default")
    ]
    assert [(e.name, e.module, e.phase) for e in given] == [(e.name, e.module, e.phase) for e in products]
    assert {e.category for e in given} == {Category.TEMPORARY}
    assert {e.phase for e in given} == {Phase.FORWARD, Phase.BACKWARD}
    for workspace, product in zip(given, products, strict=True):
        assert product.time_unix_ns <= workspace.time_unix_ns <= product.time_unix_ns + product.duration_ns
    assert tracker.summary().devices["accel:0"].categories_at_peak["temporary"] >= WORKSPACE


def test_lower_moments_are_known_too() -> None:
    x, exporter = torch.ones(10, 10, device="accel"), CollectingExporter()
    with memexport.Tracker(exporters=[exporter], capture="allocator") as tracker:
        for size in (2 * WORKSPACE, WORKSPACE):
            tracker.take_peak()
            with accelerator.workspace(size):
                x @ x
        assert tracker.take_peak()["accel:0"] == said(0)[0] + WORKSPACE + 512


def test_what_was_taken_without_an_operator_is_between_them() -> None:
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter], capture="allocator") as tracker:
        x = torch.ones(1, device="accel")
        with _disable_current_modes():
            torch.ones(1 << 18, device="accel")
        x.add_(1)
    (sample,) = [e for e in on_device(exporter) if e.kind is EventKind.SAMPLE and e.name]
    assert (sample.name, sample.allocated_bytes) == ("allocator peak", peak())
    assert tracker.summary().devices["accel:0"].peak_operator is None


def test_of_two_devices_the_highest_moments_are_known() -> None:
    torch.accelerator.reset_peak_memory_stats(1)
    with accelerator.workspace(WORKSPACE), memexport.Tracker(capture="allocator") as tracker:
        for index in (0, 1):
            x = torch.ones(10, 10, device=f"accel:{index}")
            x @ x
    for index in (0, 1):
        assert tracker.usage("peak")[f"accel:{index}"]["total"] == torch.accelerator.max_memory_allocated(
            index
        )
    (warning,) = tracker.summary().warnings
    assert warning.startswith("accel:0, accel:1: torch's record of allocations is of the CPU and one CUDA")


def test_beside_another_accelerator_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(legacy_profiler, "KNOWN_TYPE", "cuda")
    with pytest.raises(UsageError, match="torch would print a line"):
        memexport.Tracker(capture="allocator").start()
    with memexport.Tracker():
        mlp().to("accel")(torch.ones(3, 16, device="accel")).sum().backward()
    assert "Unsupported memory profiling device" not in capfd.readouterr().err
