"""The made-up recording that the benchmarks measure with."""

from __future__ import annotations

import numpy as np
import pytest
from bench.synthetic import synthetic_batches

from memexport.model import EventBatch, EventKind

OPERATORS = 8_000


@pytest.fixture(scope="module")
def recording():
    """More than one step, and its tables."""
    _, tables, batches = synthetic_batches(OPERATORS)
    return EventBatch.concat(list(batches)), tables


@pytest.fixture(scope="module")
def intervals(recording):
    """Begin and end of all that lasts, in the order of the ends."""
    events, _ = recording
    lasting = events.select((events.kind == EventKind.OPERATOR) | (events.kind == EventKind.SPAN))
    ends = lasting.time_unix_ns + lasting.duration_ns
    return list(zip(lasting.time_unix_ns.tolist(), ends.tolist(), strict=True))


def test_it_has_as_many_operators_as_asked_for_and_more_than_one_step(recording):
    events, _ = recording
    assert np.count_nonzero(events.kind == EventKind.OPERATOR) == OPERATORS
    assert set(np.unique(events.step)) >= {0, 1}


def test_events_stand_in_the_order_of_their_ends(recording):
    events, _ = recording
    ends = events.time_unix_ns + np.maximum(events.duration_ns, 0)
    assert (np.diff(ends) >= 0).all()


def test_what_lasts_nests_and_no_two_begin_together(intervals):
    closed = []
    for begin, end in intervals:
        # What lies inside has closed already; the one before that must have ended before this began.
        while closed and closed[-1][0] > begin:
            closed.pop()
        assert not closed or closed[-1][0] < begin
        assert not closed or closed[-1][1] <= begin
        closed.append((begin, end))


def test_a_step_holds_phases_that_hold_modules_that_hold_operators(recording):
    events, tables = recording
    ends = events.time_unix_ns + np.maximum(events.duration_ns, 0)

    def outside(row, name):
        named = (events.kind == EventKind.SPAN) & (events.name == tables.strings.find(name))
        return np.any(named & (events.time_unix_ns < events.time_unix_ns[row]) & (ends >= ends[row]))

    operator = int(np.flatnonzero(events.kind == EventKind.OPERATOR)[0])
    assert [outside(operator, name) for name in ("LayerNorm", "Block", "forward", "step", "backward")] == [
        True, True, True, True, False,
    ]  # fmt: skip


def test_allocated_bytes_is_the_sum_of_what_was_allocated_less_what_was_released(recording):
    events, _ = recording
    moved = np.where(events.kind == EventKind.ALLOCATION, events.size_bytes, 0)
    moved = np.where(events.kind == EventKind.RELEASE, -events.size_bytes, moved)
    assert (events.allocated_bytes == np.cumsum(moved)).all()


def test_the_same_arguments_give_the_same_events(recording):
    _, _, again = synthetic_batches(OPERATORS)
    for name, column in EventBatch.concat(list(again)).columns().items():
        assert (column == recording[0].columns()[name]).all()
