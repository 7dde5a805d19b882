"""Counters are written when they change."""

from __future__ import annotations

from typing import Any

import numpy as np

from memexport.exporters._counters import HIGHEST_EXACT, CounterChanges, CounterKey
from memexport.model import EventBatch, EventKind


def changes(counters: CounterChanges, **columns: Any) -> dict[CounterKey, list[tuple[int, int]]]:
    """Time and value of each change, by counter."""
    columns = {"kind": np.full(len(columns["time_unix_ns"]), EventKind.SAMPLE), **columns}
    batch = EventBatch(**columns)
    found: dict[CounterKey, list[tuple[int, int]]] = {}
    for key, times, values in counters.of(batch, batch.time_unix_ns):
        found[key] = list(zip(times.tolist(), values.tolist(), strict=True))
    return found


def test_only_changes_are_kept_also_across_batches() -> None:
    """The last value of a batch is the one that the next is compared with."""
    counters, key = CounterChanges(), CounterKey(-1, 0, "allocated")
    first = changes(counters, time_unix_ns=[1, 2, 3, 4], device=0, allocated_bytes=[5, 5, 6, 6])
    second = changes(counters, time_unix_ns=[5, 6], device=0, allocated_bytes=[6, 7])
    assert (first, second) == ({key: [(1, 5), (3, 6)]}, {key: [(6, 7)]})


def test_unknown_is_not_zero_and_not_a_change() -> None:
    """A null between two equal values writes nothing."""
    found = changes(CounterChanges(), time_unix_ns=[1, 2, 3, 4], device=0, active_bytes=[5, -1, 5, 0])
    assert found == {CounterKey(-1, 0, "active"): [(1, 5), (4, 0)]}


def test_devices_and_ranks_are_counted_apart() -> None:
    """Each has its own last value."""
    found = changes(
        CounterChanges(),
        time_unix_ns=[1, 2, 3, 4],
        device=[0, 1, 0, -1],
        rank=[0, 0, 3, -1],
        allocated_bytes=[9, 9, 9, 9],
    )
    assert sorted(found) == [
        CounterKey(rank, device, "allocated") for rank, device in ((-1, -1), (0, 0), (0, 1), (3, 0))
    ]


def test_markers_are_passed_over() -> None:
    """The marker "peak" comes last with an earlier time."""
    counters = CounterChanges()
    kind = [EventKind.SAMPLE, EventKind.MARKER]
    found = changes(counters, kind=kind, time_unix_ns=[5, 1], device=0, allocated_bytes=[1, 9])
    assert found == {CounterKey(-1, 0, "allocated"): [(5, 1)]}


def test_values_that_a_double_cannot_hold_are_clipped_and_counted() -> None:
    """2^53 + 1 would be drawn as another number in silence."""
    counters = CounterChanges()
    found = changes(counters, time_unix_ns=[1], device=0, reserved_bytes=[2**53 + 1])
    assert found == {CounterKey(-1, 0, "reserved"): [(1, HIGHEST_EXACT)]}
    assert counters.clipped_values == 1
