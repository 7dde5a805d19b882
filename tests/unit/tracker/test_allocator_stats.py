"""Where an accelerator's statistics come from; torch's own accelerator is tested in `tests/accelerator`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from memexport.model import Device
from memexport.tracker import allocator_stats, counters
from memexport.tracker.counters import Counters, Failures, Reading

NPU = torch.device("cuda", 1)
"""Any type that this torch has no devices of."""


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A vendor's module with two devices, whose allocator torch does not know."""
    module = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, is_initialized=lambda: True)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    return module


def nested(value: int) -> dict[str, Any]:
    names = ("allocated_bytes", "active_bytes", "reserved_bytes")
    stats: dict[str, Any] = {
        name: {"all": {"current": value + i, "peak": 90}} for i, name in enumerate(names)
    }
    return stats | {"num_alloc_retries": 4, "num_ooms": 1}


def test_a_module_with_nested_statistics_is_asked_for_them(vendor: SimpleNamespace) -> None:
    vendor.memory_stats_as_nested_dict = lambda device: nested(10 * device.index)
    reader = counters.reader_of(NPU)
    assert reader is not None
    assert reader() == Counters(10, 11, 12, 90)
    assert counters.reading_reader_of(NPU, reader)() == Reading(Counters(10, 11, 12, 90), 4)
    assert (counters.peak_of(NPU), counters.retries_and_ooms(NPU)) == (90, (4, 1))


def test_a_module_with_totals_alone_is_asked_for_these(vendor: SimpleNamespace) -> None:
    vendor.memory_allocated = lambda device: 7 * device.index
    reader = counters.reader_of(NPU)
    assert reader is not None
    assert reader() == Counters(7, -1, -1)
    assert (counters.peak_of(NPU), counters.retries_and_ooms(NPU)) == (None, (None, None))
    vendor.memory_reserved, vendor.max_memory_allocated = (lambda _: 20), (lambda _: 9)
    reader = counters.reader_of(NPU)
    assert reader is not None
    assert reader() == Counters(7, -1, 20, 9)
    assert counters.peak_of(NPU) == 9


def test_a_module_that_gives_nothing_or_fails_has_no_reader(vendor: SimpleNamespace) -> None:
    assert counters.reader_of(NPU) is None
    vendor.memory_stats_as_nested_dict = lambda _: 1 // 0
    assert counters.reader_of(NPU) is None


def test_a_device_that_the_process_does_not_see_has_no_reader(vendor: SimpleNamespace) -> None:
    vendor.memory_allocated = lambda _: 7
    assert counters.reader_of(torch.device("cuda", 2)) is None
    vendor.is_available = lambda: False
    assert counters.reader_of(NPU) is None


def test_only_accelerators_that_were_used_are_in_use(vendor: SimpleNamespace) -> None:
    assert list(allocator_stats.devices_in_use()) == [torch.device("cuda", 0), NPU]
    vendor.is_initialized = lambda: False
    assert list(allocator_stats.devices_in_use()) == []


def test_what_an_allocator_counted_before_is_not_of_the_recording(vendor: SimpleNamespace) -> None:
    stats = nested(0)
    vendor.memory_stats_as_nested_dict = lambda _: stats
    failures = Failures()
    assert failures.since_start([NPU]) == (0, 0)
    stats |= {"num_alloc_retries": 6, "num_ooms": 2}
    assert failures.since_start([torch.device("cpu"), NPU]) == (2, 1)
    stats |= {"num_alloc_retries": 3, "num_ooms": 0}  # the program has reset the counts
    assert failures.since_start([NPU]) == (3, 0)
    assert failures.since_start([torch.device("cpu")]) == (None, None)


def test_a_device_is_described_by_what_its_module_says(vendor: SimpleNamespace) -> None:
    assert counters.describe(NPU) == Device("cuda", 1)
    properties = SimpleNamespace(name="Ascend910B", total_memory=1 << 36)
    vendor.get_device_properties = lambda _: properties
    assert counters.describe(NPU) == Device("cuda", 1, name="Ascend910B", capacity_bytes=1 << 36)
