"""How far an accelerator's allocator was above what was read. This machine has none: peaks are made up."""

from __future__ import annotations

import pytest
import torch

from memexport.tracker import counters
from memexport.tracker.coverage import PeakCoverage

GPU = torch.device("cuda", 0)


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> dict[torch.device, int]:
    peaks = {GPU: 100}
    monkeypatch.setattr(counters, "peak_of", peaks.get)
    monkeypatch.setattr("memexport.tracker.coverage.devices_in_use", lambda: iter([GPU]))
    return peaks


def test_a_peak_that_was_never_read_is_told(peaks: dict[torch.device, int]) -> None:
    coverage = PeakCoverage()
    peaks[GPU] = 1000
    (sentence,) = coverage.warnings([GPU], {"cuda:0": 900})
    assert sentence.startswith("cuda:0: for a moment, 100 bytes more")


def test_a_peak_from_before_the_recording_is_not_its(peaks: dict[torch.device, int]) -> None:
    assert list(PeakCoverage().warnings([GPU], {"cuda:0": 50})) == []


def test_less_than_a_hundredth_is_not_worth_a_warning(peaks: dict[torch.device, int]) -> None:
    coverage = PeakCoverage()
    peaks[GPU] = 1000
    assert list(coverage.warnings([GPU], {"cuda:0": 991})) == []


def test_a_device_without_such_a_counter_or_without_readings_is_left_out(
    peaks: dict[torch.device, int],
) -> None:
    coverage = PeakCoverage()
    peaks[GPU] = 1000
    assert list(coverage.warnings([torch.device("cpu"), GPU], {"cpu": 1})) == []


def test_an_allocator_that_keeps_a_peak_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"allocated_bytes": {"all": {"current": 1, "peak": 7}}}
    monkeypatch.setattr(counters, "_stats", lambda _: stats)
    assert counters.peak_of(GPU) == 7


def test_without_an_accelerator_there_is_nothing_to_tell() -> None:
    assert list(PeakCoverage().warnings([torch.device("cpu")], {"cpu": 1})) == []
