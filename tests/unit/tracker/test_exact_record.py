"""What torch's private interfaces give, on which the allocator's record relies; a test says what moved."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from memexport.tracker import exact_record, rows
from memexport.tracker.exact_record import AllocatorRecord


@pytest.fixture
def log() -> bytearray:
    return bytearray()


@pytest.fixture
def record(log: bytearray) -> Iterator[AllocatorRecord]:
    record = AllocatorRecord(log.extend)
    record.start()
    log.clear()
    yield record
    record.stop()


def read(log: bytearray) -> list[tuple[int, int]]:
    """When and how many bytes, in order."""
    raw = np.frombuffer(bytes(log), rows.ROW_DTYPE)
    assert set(raw["code"].tolist()) <= {rows.MEMORY}
    return list(zip(raw["time"].tolist(), raw["first"].tolist(), strict=True))


def test_every_allocation_and_release_is_in_it(record: AllocatorRecord, log: bytearray) -> None:
    ones = torch.ones(1000)
    more = ones + 1
    del ones, more
    record.stop()
    # Python's 1 becomes a tensor of a double, then of a float.
    assert [size for _, size in read(log)] == [4000, 8, 4, 4000, -4, -8, -4000, -4000, 0]


def test_it_may_be_read_in_between(record: AllocatorRecord, log: bytearray) -> None:
    held = torch.ones(1000)
    record.drain()
    assert [size for _, size in read(log)] == [4000, 0]
    del held
    record.drain()
    assert [size for _, size in read(log)] == [4000, 0, -4000, 0]


def test_its_clock_is_that_of_the_rows(record: AllocatorRecord, log: bytearray) -> None:
    moments = [time.perf_counter_ns()]
    for _ in range(100):
        torch.ones(1000)
        moments.append(time.perf_counter_ns())
    record.stop()
    times = [when for when, size in read(log) if size == 4000]
    assert len(times) == 100
    assert np.searchsorted(moments, times).tolist() == list(range(1, 101))


def test_what_a_backward_allocates_is_in_it(record: AllocatorRecord, log: bytearray) -> None:
    x = torch.ones(1000, requires_grad=True)
    (x * 2).sum().backward()
    record.stop()
    sizes = [size for _, size in read(log)]
    assert x.grad is not None
    assert sizes.count(4000) == 3
    assert sizes.count(-4000) == 1


def test_operators_are_not_reported_to_it(record: AllocatorRecord) -> None:
    torch.ones(1000)
    events = record._take(lambda: None)
    assert {event.kind() for event in events} == {"memory_alloc", "mark"}
    record._switch_on()


def test_it_is_not_read_in_a_backward(record: AllocatorRecord, log: bytearray) -> None:
    x = torch.ones(1000, requires_grad=True)
    x.register_hook(lambda _: record.drain())
    x.sum().backward()
    assert read(log) == []


def test_the_clock_offset_is_that_of_a_reading_that_was_not_interrupted() -> None:
    offsets = [exact_record._clock_offset_ns() for _ in range(20)]
    assert max(offsets) - min(offsets) < 100_000
