"""The real Perfetto UI opens what PerfettoExporter writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from perfetto_ui import find_chromium, perfetto_ui

from memexport.exporters import FileDestination
from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import Category, Device, EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

pytestmark = [pytest.mark.ui, pytest.mark.skipif(find_chromium() is None, reason="needs chromium")]


MIB = 1 << 20


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A forward phase with two operators; a parameter, and two tensors of which one is released."""
    tables = Tables()
    operator, forward, thread, module = map(
        tables.strings.intern, ("aten.mm.default", "forward", "MainThread", "net.0.fc")
    )
    exporter = PerfettoExporter(FileDestination(tmp_path / "small.pftrace"))
    exporter.begin(RecordingInfo(start_time_unix_ns=0, rank=0, pid=4000, devices=[Device("cuda", 0)]), tables)
    allocation, work = EventKind.ALLOCATION, EventKind.OPERATOR
    kinds = [allocation, allocation, work, allocation, work, EventKind.RELEASE, EventKind.SPAN]
    exporter.write(
        EventBatch(
            kind=kinds,
            time_unix_ns=[10, 150, 100, 350, 300, 420, 50],
            duration_ns=[-1, -1, 100, -1, 100, -1, 400],
            name=[0, operator, operator, operator, operator, 0, forward],
            module=[module] * 6 + [0],
            category=[Category.PARAMETER, *[Category.ACTIVATION] * 5, 0],
            phase=1,
            thread=thread,
            device=[0] * 6 + [-1],
            rank=0,
            size_bytes=[MIB, MIB, MIB, MIB, MIB, MIB, -1],
            allocated_bytes=[MIB, 2 * MIB, 2 * MIB, 3 * MIB, 3 * MIB, 2 * MIB, -1],
            address=[1, 2, 0, 3, 0, 2, 0],
        )
    )
    exporter.end(RecordingEnd())
    return tmp_path / "small.pftrace"


def test_the_ui_opens_the_process_with_its_tracks(trace: Path, tmp_path: Path) -> None:
    """Without an error, the lone process open, every track under it by name, the flamegraph on view."""
    with perfetto_ui(trace) as ui:
        (process,) = ui.tracks()
        shown = ui.details()
        ui.screenshot(tmp_path / "small.png")
        problems = ui.problems()
    assert problems == []
    assert process["open"]
    children = {track["name"]: track["children"] for track in process["children"]}
    assert set(children) == {
        "MainThread 4000",
        "Heap Profile",
        "cuda:0 allocated",
        "tensor lifetimes cuda:0, 4: ≥ 256 KiB",
        "tensors from before cuda:0",
        "markers",
    }
    assert [track["name"] for track in children["cuda:0 allocated"]] == [
        "parameter", "activation", "unattributed"
    ]  # fmt: skip
    assert "Heap profile" in shown
    assert (tmp_path / "small.png").stat().st_size > 10_000


def test_the_counters_of_several_ranks_are_on_view_above_the_processes(tmp_path: Path) -> None:
    """Also where each rank has a hundred lanes of tensor lifetimes: all ranks are seen at once."""
    tables = Tables()
    operator = tables.strings.intern("aten.mm.default")
    devices = [Device("cuda", number) for number in range(4)]
    exporter = PerfettoExporter(FileDestination(tmp_path / "ranks.pftrace"))
    exporter.begin(RecordingInfo(start_time_unix_ns=0, world_size=4, devices=devices), tables)
    number = np.arange(400)
    exporter.write(
        EventBatch(
            kind=np.full(400, EventKind.ALLOCATION),
            time_unix_ns=10 * number,
            name=operator,
            category=Category.ACTIVATION,
            device=number % 4,
            rank=number % 4,
            size_bytes=MIB,
            allocated_bytes=MIB * (number // 4 + 1),
            address=number + 1,
        )
    )
    exporter.end(RecordingEnd())
    with perfetto_ui(tmp_path / "ranks.pftrace") as ui:
        names = [track["name"] for track in ui.tracks()]
        problems = ui.problems()
    assert problems == []
    counters = [f"rank {rank:02} cuda:{rank} allocated" for rank in range(4)]
    assert [name for name in names if name in counters or name.startswith("rank 0 ")][:4] == counters
