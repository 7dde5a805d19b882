"""Memory of an accelerator runs out: in forward, in the engine's thread, in the optimizer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerator
import pytest
import torch
from recorded import CollectingExporter
from torch import nn
from training import Block, batch, said

import memexport
from memexport.model import EventKind
from memexport.tracker.oom.report import OomReport

ASKED = 256 << 10


class Wasteful(torch.autograd.Function):
    """Takes 256 KiB in its backward."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.ones(ASKED // 4, device=gradient.device)[0]


class Body(nn.Module):
    """Two layers; between them, memory runs out in forward or in backward."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self._where = where

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self._where == "forward":
            x = x + torch.ones(ASKED // 4, device=x.device)[0]
        if self._where == "backward":
            x = Wasteful.apply(x)
        return self.second(x)


class Wide(nn.Module):
    """Has a parameter of 256 KiB, of which an optimizer makes two more."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ASKED // 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.mean() * self.weight).sum()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "forward": (lambda: Body("forward"), 200 << 10),
    "backward": (lambda: Body("backward"), 200 << 10),
    "optimizer": (Wide, 2 * ASKED + 4096),
}


def run_out(where: str, on_oom: Any, *exporters: Any) -> tuple[torch.OutOfMemoryError, memexport.Tracker]:
    make, capacity = MODELS[where]
    model = make().to("accel:1")
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    tracker = memexport.Tracker(model, optimizer=optimizer, exporters=exporters, on_oom=on_oom)
    with (
        accelerator.capacity(1, said(1)[0] + capacity),
        pytest.raises(torch.OutOfMemoryError) as raised,
        tracker,
    ):
        model(torch.randn(4, 16).to("accel:1")).sum().backward()
        optimizer.step()
    return raised.value, tracker


@pytest.mark.parametrize(
    ("where", "operator", "module"),
    [
        ("forward", "aten.ones.default", "Body"),
        ("backward", "aten.ones.default", "Body"),
        ("optimizer", "aten.zeros_like.default", None),
    ],
    ids=MODELS,
)
def test_a_report_says_who_asked_and_what_was_left(where: str, operator: str, module: str | None) -> None:
    reports: list[OomReport] = []
    said_then: list[tuple[int, int, int]] = []

    def told(report: OomReport) -> None:
        reports.append(report)
        said_then.append(said(1))

    error, tracker = run_out(where, told)
    (report,) = reports
    assert (report.request_bytes, report.device, report.phase) == (ASKED, "accel:1", where)
    assert (report.operator, report.module) == (operator, module)
    assert tuple(report.counters) == said_then[0]
    assert report.device_free_bytes is not None and report.device_free_bytes < ASKED
    assert report.held_on == "accel:1"
    parameters = sum(p.nbytes for p in MODELS[where][0]().parameters())
    assert report.held.categories["parameter"] == parameters
    assert sum(report.held.categories.values()) == said_then[0][0]
    assert str(error).startswith("ACCEL out of memory. Tried to allocate 256 KiB. GPU 1")
    assert [note.startswith("memexport: out of memory on accel:1") for note in error.__notes__] == [True]
    assert (tracker.summary().ooms, tracker.summary().alloc_retries) == (1, 1)


@pytest.mark.parametrize("where", MODELS)
def test_handling_one_takes_nothing_from_the_device(where: str) -> None:
    def allocations() -> int:
        return torch.accelerator.memory_stats(1)["allocation.all.allocated"]

    def taken(on_oom: Any) -> int:
        before = allocations()
        run_out(where, on_oom)
        return allocations() - before

    assert taken(lambda report: str(report)) == taken(None)


@pytest.mark.parametrize("where", MODELS)
def test_a_recording_of_it_says_the_same_as_the_allocator(where: str, tmp_path: Path) -> None:
    kept = CollectingExporter()
    run_out(where, tmp_path, kept)
    (path,) = tmp_path.iterdir()
    with memexport.open(path) as recording:
        summary = recording.summary()
    (failed,) = summary.devices["accel:1"].failed_requests
    assert (failed.bytes, failed.phase) == (ASKED, where)
    assert sum(bytes_ for bytes_ in failed.categories.values()) == failed.allocated_bytes
    assert not [warning for warning in summary.warnings if "for a moment" in warning]
    assert any(e.kind is EventKind.MARKER and e.name == "oom" for e in kept.events())


def test_a_program_may_go_on_with_a_smaller_batch() -> None:
    model, reports = Block().to("accel"), []
    with (
        memexport.Tracker(model, on_oom=reports.append, exporters=[CollectingExporter()]) as tracker,
        accelerator.capacity(0, said(0)[0] + (512 << 10)),
    ):
        with pytest.raises(torch.OutOfMemoryError):
            model(torch.randn(4000, 4, 16).to("accel"))
        model(batch("block", "accel")).sum().backward()
    (report,) = reports
    assert report.phase in ("forward", "other")
    usage = tracker.usage("current")["accel:0"]
    assert usage["gradient"] == usage["parameter"] == sum(p.nbytes for p in model.parameters())
    assert usage["total"] == said(0)[0]
