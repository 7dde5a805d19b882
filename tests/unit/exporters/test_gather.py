"""Batches are joined until there are enough events, and none is lost, doubled or moved."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memexport.exporters._gather import Gathered
from memexport.model import EventBatch


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 12))
def test_every_event_comes_out_once_and_in_order(sizes: list[int], least: int) -> None:
    """Each joined batch but the last has enough events."""
    gathered, came_out, first = Gathered(least), [], 0
    for size in sizes:
        batch = EventBatch(kind=np.ones(size, np.uint8), time_unix_ns=np.arange(first, first + size))
        first += size
        came_out.append(gathered.add(batch))
    whole = [batch for batch in came_out if batch is not None]
    assert all(len(batch) >= least for batch in whole)
    rest = gathered.rest()
    times = [time for batch in [*whole, rest] if batch is not None for time in batch.time_unix_ns.tolist()]
    assert times == list(range(first)) and gathered.rest() is None


def test_a_batch_that_is_large_enough_is_not_copied() -> None:
    """It is passed on as it is; with a least of 0, every one."""
    batch = EventBatch(kind=np.ones(3, np.uint8))
    assert Gathered(3).add(batch) is batch and Gathered(0).add(batch) is batch
