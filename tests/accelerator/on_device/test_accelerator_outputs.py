"""What is written of a run on two devices: both are in every output, with their allocators' numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerator
import pytest
import torch
from test_accelerator_counters import Split
from trace_processor import TraceProcessor
from training import batch, said

import memexport
from memexport import registry
from memexport.analysis.summary import Summary

DEVICES = ("accel:0", "accel:1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def summary(folder: Path) -> Summary:
    """Of a run that is written to this folder."""
    outputs = [str(folder / f"run{suffix}") for suffix in (".memx", ".pftrace", ".otlp.jsonl")]
    model = Split()
    optimizer = torch.optim.Adam(model.parameters())
    for index in (0, 1):
        torch.accelerator.synchronize(index)
        torch.accelerator.reset_peak_memory_stats(index)
    with (
        accelerator.workspace(300 << 10),
        memexport.Tracker(model, optimizer=optimizer, exporters=outputs) as tracker,
    ):
        for _ in range(3):
            model(batch("split", "accel:0")).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()
        levels = [said(index) for index in (0, 1)]
    for index, name in enumerate(DEVICES):
        device = tracker.summary().devices[name]
        ends = [one and one.end for one in (device.allocated, device.active, device.reserved)]
        assert tuple(ends) == levels[index]
        assert device.allocated and device.allocated.peak == torch.accelerator.max_memory_allocated(index)
    return tracker.summary()


def test_the_recording_sums_up_to_the_same(folder: Path, summary: Summary) -> None:
    with memexport.open(folder / "run.memx") as recording:
        assert recording.summary().to_dict()["devices"] == summary.to_dict()["devices"]
    assert set(summary.devices) == {"cpu", *DEVICES}
    assert summary.devices["accel:0"].peak_module.startswith("first")
    assert summary.devices["accel:1"].peak_module.startswith("second")


def test_the_trace_has_the_counters_of_both_and_the_engines_threads(folder: Path, summary: Summary) -> None:
    with TraceProcessor() as processor:
        processor.load(folder / "run.pftrace")
        assert processor.import_problems() == []
        highest = {
            row["name"]: row["highest"]
            for row in processor.query(
                "SELECT t.name, max(value) AS highest FROM counter JOIN track AS t ON t.id = track_id"
                " WHERE t.name GLOB 'accel:* allocated' OR t.name GLOB 'accel:* reserved' GROUP BY 1"
            )
        }
        threads = [row["name"] for row in processor.query("SELECT name FROM thread WHERE name IS NOT NULL")]
    for name in DEVICES:
        device = summary.devices[name]
        assert device.allocated and highest[f"{name} allocated"] == device.allocated.peak
        assert device.reserved and highest[f"{name} reserved"] == device.reserved.peak
    assert len([name for name in threads if name.startswith("autograd")]) == 2


def points(folder: Path, metric: str) -> Iterator[dict[str, Any]]:
    for line in (folder / "run.otlp.jsonl").read_text().splitlines():
        for resource in json.loads(line).get("resourceMetrics", ()):
            for scope in resource["scopeMetrics"]:
                for found in scope["metrics"]:
                    if found["name"] == metric:
                        yield from (found.get("sum") or found["gauge"])["dataPoints"]


def test_metrics_of_both_add_up_over_their_categories(folder: Path, summary: Summary) -> None:
    def by_device(metric: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for point in points(folder, metric):
            (device,) = [
                a["value"]["stringValue"] for a in point["attributes"] if a["key"] == "memexport.device"
            ]
            sums[device] = sums.get(device, 0) + int(point["asInt"])
        return sums

    assert set(by_device("memexport.memory.allocated")) == {"cpu", *DEVICES}
    assert by_device("memexport.memory.usage") == by_device("memexport.memory.allocated")
    peaks = by_device("memexport.memory.allocated.peak")
    assert [peaks[name] for name in DEVICES] == [torch.accelerator.max_memory_allocated(i) for i in (0, 1)]


FILES = [one for one in registry.exporters() if one.suffixes and one.name not in ("png", "svg")]


@pytest.mark.parametrize("format_", FILES, ids=lambda one: one.name)
def test_every_format_takes_it(format_: registry.Format, folder: Path, summary: Summary) -> None:
    output = folder / f"copy{format_.suffixes[0]}"
    memexport.convert(folder / "run.memx", output)
    assert output.stat().st_size > 500
