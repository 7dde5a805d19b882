"""Counters that a simulated allocator gives to a recording."""

from __future__ import annotations

import pytest

from memexport.analysis.allocator_settings import AllocatorSettings
from memexport.analysis.estimate import AllocatorEstimate
from memexport.model import EventBatch, EventKind, Tables

MIB = 1 << 20
ALLOCATION, RELEASE, OPERATOR = EventKind.ALLOCATION, EventKind.RELEASE, EventKind.OPERATOR


def batch(*events: tuple[EventKind, int, int, int], tables: Tables | None = None) -> EventBatch:
    """Events of kind, device, size, address."""
    kind, device, size, address = zip(*events, strict=True)
    count = len(events)
    peak = tables.strings.intern("peak") if tables else 0
    name = [peak if k is EventKind.MARKER else 0 for k in kind]
    return EventBatch(
        kind=kind,
        device=device,
        size_bytes=size,
        address=address,
        name=name,
        time_unix_ns=range(10, 10 * count + 1, 10),
        duration_ns=[0] * count,
        allocated_bytes=[0] * count,
        active_bytes=[0] * count,
    )


def estimate(tables: Tables | None = None, limit: int = 1 << 62) -> AllocatorEstimate:
    return AllocatorEstimate(lambda device: device == 1, tables or Tables(), AllocatorSettings(), limit)


def test_every_event_of_the_device_carries_its_allocators_counters() -> None:
    estimated = estimate().apply(
        batch(
            (ALLOCATION, 1, 1000, 1),
            (OPERATOR, 1, 1000, 0),
            (ALLOCATION, 1, 3 * MIB, 2),
            (RELEASE, 1, 1000, 1),
        )
    )
    # Before the first, nothing is there.
    assert estimated.kind.tolist()[0] == EventKind.SAMPLE
    assert estimated.allocated_bytes.tolist() == [0, 1024, 1024, 1024 + 3 * MIB, 3 * MIB]
    assert estimated.active_bytes.tolist() == estimated.allocated_bytes.tolist()
    assert estimated.reserved_bytes.tolist() == [0, 2 * MIB, 2 * MIB, 22 * MIB, 22 * MIB]


def test_other_devices_stay_as_they_are() -> None:
    plain = batch((ALLOCATION, 0, 1000, 1))
    assert estimate().apply(plain) is plain
    estimated = estimate().apply(batch((ALLOCATION, 0, 1000, 1), (ALLOCATION, 1, 1000, 2)))
    assert estimated.reserved_bytes.tolist() == [-1, 0, 2 * MIB]


@pytest.mark.parametrize("cut", range(5))
def test_it_goes_on_from_batch_to_batch(cut: int) -> None:
    events = [(ALLOCATION, 1, 5 * MIB, n) for n in range(3)] + [(RELEASE, 1, 5 * MIB, n) for n in range(2)]
    whole = estimate().apply(batch(*events))
    fold = estimate()
    parts = [fold.apply(batch(*part)) for part in (events[:cut], events[cut:]) if part]
    joined = EventBatch.concat(parts)
    for name in ("kind", "allocated_bytes", "reserved_bytes"):
        assert getattr(joined, name).tolist() == getattr(whole, name).tolist()
    assert fold.counters(1) == {
        "allocated": 5 * MIB,
        "reserved": 20 * MIB,
        "peak_allocated": 15 * MIB,
        "peak_reserved": 20 * MIB,
    }


def test_the_marker_peak_says_where_the_estimate_peaked() -> None:
    tables = Tables()
    fold = estimate(tables)
    fold.apply(batch((ALLOCATION, 1, 600, 1), (ALLOCATION, 1, 600, 2), (RELEASE, 1, 600, 2)))
    (marker,) = [fold.apply(batch((EventKind.MARKER, 1, 0, 0), tables=tables))]
    assert marker.allocated_bytes.tolist() == [2048]
    assert marker.reserved_bytes.tolist() == [2 * MIB]
    assert marker.time_unix_ns.tolist() == [20]


def test_a_device_that_was_never_seen_has_nothing() -> None:
    assert set(estimate().counters(1).values()) == {0}


def test_retries_and_failures_are_counted() -> None:
    fold = estimate(limit=50 * MIB)
    fold.apply(batch((ALLOCATION, 1, 30 * MIB, 1), (RELEASE, 1, 30 * MIB, 1), (ALLOCATION, 1, 40 * MIB, 2)))
    assert (fold.retries, fold.failures) == (1, 0)
    fold.apply(batch((ALLOCATION, 1, 40 * MIB, 3)))
    assert (fold.retries, fold.failures) == (2, 1)
