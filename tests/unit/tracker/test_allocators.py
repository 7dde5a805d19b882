"""What an allocator says after operators, and had inside of them; the allocator is simulated."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from recorded import CollectingExporter, operators
from torch._subclasses.fake_tensor import FakeTensorMode

import memexport
from memexport.model import EventKind, Tables
from memexport.tracker import counters, rows
from memexport.tracker.allocators import ALLOCATOR_PEAK, Allocators
from memexport.tracker.counters import Counters
from memexport.tracker.rows import DEVICE_UNIT, LABEL_UNIT, ROW_DTYPE, Labels

GPU = torch.device("cuda", 0)
CODE = DEVICE_UNIT


class Simulated:
    """A device whose allocator says whatever a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Counters | None) -> None:
        self.says = before or Counters(0, 0, 0, 0)
        in_use = {} if before is None else {GPU: before}
        monkeypatch.setattr(counters, "counters_in_use", lambda: in_use)
        monkeypatch.setattr(counters, "reader_of", lambda _: lambda: self.says)
        self.log = bytearray()
        self.labels = Labels(Tables())
        self.allocators = Allocators(self.labels, self.log.extend, fake=False)
        self.context = self.labels.context(None, 5, "main")
        self.inside = self.labels.code(rows.SAMPLE, "aten.mm.default")
        self.allocators.add(GPU)

    def operator(self, *says: int) -> list[tuple[int, int, int]]:
        """Read after one; what was logged of what it had inside."""
        self.says = Counters(*says)
        self.allocators.counters_row(CODE, self.context)
        self.allocators.log_risen(CODE, self.inside, self.context, 7)
        return self.logged(rows.COUNTERS)

    def logged(self, kind: int) -> list[tuple[int, int, int]]:
        """The rows of this kind that were logged since it was last asked."""
        raw = np.frombuffer(bytes(self.log), ROW_DTYPE)
        self.log.clear()
        kept = raw[raw["code"] % DEVICE_UNIT == kind]
        return [(time, first, second) for _, _, time, first, second in kept.tolist()]


def test_a_peak_that_is_what_is_left_is_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, None)
    assert gpu.operator(100, 100, 200, 100) == []
    assert gpu.operator(150, 150, 200, 150) == []


def test_a_peak_above_what_is_left_was_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, None)
    assert gpu.operator(100, 100, 400, 300) == [(300, 300, 400)]
    assert gpu.operator(120, 120, 400, 300) == []
    assert gpu.operator(100, 100, 400, 301) == [(301, 301, 400)]


def test_a_peak_from_before_the_recording_is_not_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, Counters(50, 50, 2000, 1000))
    assert gpu.operator(100, 100, 2000, 1000) == []
    assert gpu.operator(100, 100, 2000, 1001) == [(1001, 1001, 2000)]


def test_a_peak_that_was_reset_is_followed_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, Counters(50, 50, 2000, 1000))
    assert gpu.operator(60, 60, 2000, 60) == []
    assert gpu.operator(60, 60, 2000, 90) == [(90, 90, 2000)]
    assert gpu.operator(70, 70, 2000, 80) == [(80, 80, 2000)]


def test_a_peak_that_was_reset_to_what_was_there_is_of_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, Counters(500, 500, 2000, 1000))
    assert gpu.operator(60, 60, 2000, 500) == []


def test_what_else_was_there_at_the_peak_is_unknown_where_it_may_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Simulated(monkeypatch, None)
    assert gpu.operator(100, 120, 400, 300) == [(300, -1, 400)]  # a stream still uses something
    assert gpu.operator(100, 100, 250, 310) == [(310, 310, -1)]  # the cache was emptied


def test_an_allocator_that_keeps_no_peak_has_none_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, None)
    assert gpu.operator(100, 100, 200, -1) == []


def test_a_reading_without_an_operator_says_so_and_what_there_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, None)
    gpu.says = Counters(100, 100, 400, 300)
    gpu.allocators.sample(gpu.context)
    names = np.frombuffer(bytes(gpu.log), ROW_DTYPE)["code"][::2] // LABEL_UNIT
    texts = [gpu.labels.tables.strings.get(gpu.labels.names[name]) for name in names.tolist()]
    assert texts == [ALLOCATOR_PEAK, None]
    assert gpu.logged(rows.COUNTERS) == [(300, 300, 400), (100, 100, 400)]


def test_what_somebody_else_has_logged_is_not_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, None)
    gpu.allocators.seen(CODE, Counters(100, 100, 400, 300))
    assert gpu.operator(100, 100, 400, 300) == []


def test_looking_again_logs_nothing_unless_there_was_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Simulated(monkeypatch, Counters(100, 100, 400, 300))
    gpu.allocators.look_at_all(gpu.inside, gpu.context, 7)
    assert gpu.logged(rows.SAMPLE) == []
    gpu.says = Counters(100, 100, 400, 350)
    gpu.allocators.look_at_all(gpu.inside, gpu.context, 7)
    assert gpu.logged(rows.SAMPLE) == [(7, 0, 0), (7, 0, 0)]


def test_a_tracker_logs_it_before_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = iter([Counters(0, 0, 0, 0), Counters(512, 512, 4096, 512), Counters(512, 512, 4096, 2560)])
    latest = SimpleNamespace(says=Counters(0, 0, 0, 0))

    def read() -> Counters:
        latest.says = next(levels, latest.says)
        return latest.says

    exporter = CollectingExporter()
    monkeypatch.setattr(memexport.tracker, "_is_simulated", lambda _: False)
    monkeypatch.setattr(counters, "reader_of", lambda _: read)
    with FakeTensorMode(), memexport.Tracker(exporters=[exporter]) as tracker:
        x = torch.empty(100, device="cuda")
        y = x + 1
        y.add_(1)
    events = [e for e in exporter.events() if e.device == "cuda:0"]
    (at,) = [at for at, e in enumerate(events) if e.kind is EventKind.SAMPLE and e.allocated_bytes == 2560]
    assert events[at].name == events[at + 1].name == operators(events)[2].name == "aten.add_.Tensor"
    device = tracker.summary().devices["cuda:0"]
    assert (device.allocated.peak, device.peak_operator) == (2560, "aten.add_.Tensor")
    assert device.categories_at_peak["unattributed"] == 2560 - 800
