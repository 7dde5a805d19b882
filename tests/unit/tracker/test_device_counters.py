"""An accelerator's own counters, with an allocator that is simulated: this machine has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import CollectingExporter, operators
from torch._subclasses.fake_tensor import FakeTensorMode

import memexport
from memexport.model import EventKind
from memexport.tracker import counters, stream
from memexport.tracker.counters import Counters


class Allocator:
    """Rounds up to 512 bytes and keeps what it was given back, as CUDA's does."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.reserved = 0

    def read(self) -> Counters:
        allocated = sum(-(-t.untyped_storage().nbytes() // 512) * 512 for t in self.tensors)
        self.reserved = max(self.reserved, -(-allocated // 4096) * 4096)
        return Counters(allocated, allocated + 512, self.reserved)


def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[list[SimpleNamespace], dict[str, Any]]:
    allocator, exporter = Allocator(), CollectingExporter()
    monkeypatch.setattr(memexport.tracker, "_is_simulated", lambda _: False)
    monkeypatch.setattr(counters, "reader_of", lambda _: allocator.read)
    failures = {"cpu": (None, None), "cuda": (3, 1)}
    monkeypatch.setattr(counters, "retries_and_ooms", lambda device: failures[device.type])
    with FakeTensorMode(), memexport.Tracker(exporters=[exporter]) as tracker:
        for size in (1000, 5000, 100):
            allocator.tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        allocator.tensors.clear()
        torch.empty(7, dtype=torch.uint8, device="cpu")
        torch.empty(7, dtype=torch.uint8, device="cuda")
    return exporter.events(), tracker.summary().to_dict()


def test_each_operator_carries_what_its_devices_allocator_says_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, _ = recorded(monkeypatch)
    on_device = [e for e in operators(events) if e.device == "cuda:0"]
    # The reading comes before the test's own list holds the newest tensor.
    assert [(e.allocated_bytes, e.active_bytes, e.reserved_bytes) for e in on_device] == [
        (0, 512, 0),
        (1024, 1536, 4096),
        (6144, 6656, 8192),
        (0, 512, 8192),
    ]
    assert [e.size_bytes for e in on_device] == [1000, 5000, 100, 7]


def test_no_reading_is_lost_wherever_the_log_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK_ROWS", 1)
    events, summary = recorded(monkeypatch)
    on_device = [e.allocated_bytes for e in operators(events) if e.device == "cuda:0"]
    assert on_device == [0, 1024, 6144, 0]
    assert summary["devices"]["cuda:0"]["allocated"]["peak"] == 6144


def test_between_readings_an_accelerators_counters_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    events, _ = recorded(monkeypatch)
    moves = [
        e for e in events if e.kind in (EventKind.ALLOCATION, EventKind.RELEASE) and e.device == "cuda:0"
    ]
    assert len(moves) == 8
    assert {(e.allocated_bytes, e.active_bytes, e.reserved_bytes) for e in moves} == {(-1, -1, -1)}


def test_the_cpu_beside_it_still_counts_its_storages(monkeypatch: pytest.MonkeyPatch) -> None:
    events, _ = recorded(monkeypatch)
    (on_cpu,) = [e for e in operators(events) if e.device == "cpu"]
    assert on_cpu.size_bytes == 7
    assert on_cpu.reserved_bytes == -1


def test_the_summary_shows_what_the_allocator_counts_beyond_the_storages_as_unattributed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, summary = recorded(monkeypatch)
    device = summary["devices"]["cuda:0"]
    assert device["allocated"]["peak"] == 6144
    assert device["reserved"]["peak"] == 8192
    assert sum(device["categories_at_peak"].values()) == 6144
    assert (summary["alloc_retries"], summary["ooms"]) == (3, 1)


def test_stats_of_torchs_allocators_are_read_as_they_are() -> None:
    stats = {
        name: {"all": {"current": value, "peak": 9}, "large_pool": {"current": 1}}
        for name, value in [("allocated_bytes", 10), ("active_bytes", 20), ("reserved_bytes", 30)]
    }
    assert counters._from_stats(stats) == Counters(10, 20, 30, 9)
    assert counters._from_stats({}) == Counters(0, 0, 0, 0)
    assert counters._from_stats({"allocated_bytes": stats["allocated_bytes"]}) == Counters(10, -1, -1, 9)


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1, 2**63, None, "10"])
def test_what_cannot_be_a_number_of_bytes_is_unknown(nonsense: object) -> None:
    stats = {name: {"all": {"current": nonsense}} for name in ("allocated_bytes", "reserved_bytes")}
    assert counters._from_stats(stats) == Counters(-1, -1, -1)


def test_devices_without_an_allocator_to_ask_have_no_reader() -> None:
    assert counters.reader_of(torch.device("cpu")) is None
    if not torch.cuda.is_available():
        assert counters.reader_of(torch.device("cuda:0")) is None
        assert counters.retries_and_ooms(torch.device("cuda:0")) == (None, None)
        assert counters.describe(torch.device("cuda:0")) == memexport.model.Device("cuda", 0)
