"""The real Perfetto UI opens what PerfettoExporter writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from perfetto_ui import find_chromium, perfetto_ui

from memexport.exporters import FileDestination
from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import Device, EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

pytestmark = [pytest.mark.ui, pytest.mark.skipif(find_chromium() is None, reason="needs chromium")]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A forward phase with two operators, and a counter."""
    tables = Tables()
    operator, forward, thread = map(tables.strings.intern, ("aten.mm.default", "forward", "MainThread"))
    exporter = PerfettoExporter(FileDestination(tmp_path / "small.pftrace"))
    exporter.begin(RecordingInfo(start_time_unix_ns=0, rank=0, pid=4000, devices=[Device("cuda", 0)]), tables)
    kinds = [EventKind.OPERATOR, EventKind.OPERATOR, EventKind.SPAN]
    exporter.write(
        EventBatch(
            kind=kinds,
            time_unix_ns=[100, 300, 50],
            duration_ns=[100, 100, 400],
            name=[operator, operator, forward],
            phase=1,
            thread=thread,
            device=0,
            allocated_bytes=[1 << 20, 3 << 20, -1],
        )
    )
    exporter.end(RecordingEnd())
    return tmp_path / "small.pftrace"


def test_the_ui_opens_the_process_with_its_tracks(trace: Path, tmp_path: Path) -> None:
    """Without an error, the lone process open, every track under it by name."""
    with perfetto_ui(trace) as ui:
        (process,) = ui.tracks()
        ui.screenshot(tmp_path / "small.png")
        problems = ui.problems()
    assert problems == []
    assert process["open"]
    assert {track["name"] for track in process["children"]} == {
        "MainThread 4000",
        "cuda:0 allocated",
        "markers",
    }
    assert (tmp_path / "small.png").stat().st_size > 10_000
