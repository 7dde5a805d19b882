"""What is live at each event equals what a dict says, wherever the batches are cut."""

from __future__ import annotations

import numpy as np
from event_streams import batch_of, event, one_place
from hypothesis import given
from hypothesis import strategies as st

from memexport.analysis.live import LiveSet
from memexport.model import EventKind, Tables


def live_rows(allocations):
    """The live allocations as a dict by address."""
    rows = zip(allocations.address.tolist(), allocations.columns["size_bytes"].tolist(), strict=True)
    return dict(rows)


def expected_after(live, event):
    """What a dict makes of one event."""
    if event["address"] and event["kind"] == EventKind.ALLOCATION:
        live[event["address"]] = event["size_bytes"]
    if event["address"] and event["kind"] == EventKind.RELEASE:
        live.pop(event["address"], None)


@given(one_place, st.integers(0, 80))
def test_what_is_live_after_each_event_equals_a_dict(stream, cut):
    tables, live_set, live = Tables(), LiveSet(), {}
    for piece in (stream[:cut], stream[cut:]):
        lifetimes = live_set.add(batch_of(piece, tables), np.arange(len(piece)))
        assert live_rows(lifetimes.live_at(-1)) == live
        for position, happened in enumerate(piece):
            expected_after(live, happened)
            assert live_rows(lifetimes.live_at(position)) == live
        assert live_rows(live_set.live()) == live
        assert np.all(np.diff(live_set.live().address.astype(np.int64)) > 0)


def test_an_address_allocated_again_ends_the_allocation_whose_release_was_not_seen():
    stream = [event(EventKind.ALLOCATION, address=1, size_bytes=size) for size in (10, 20)]
    lifetimes = LiveSet().add(batch_of(stream, Tables()), np.arange(2))
    assert lifetimes.born_end[lifetimes.born_start == 0].tolist() == [1]


def test_only_the_columns_asked_for_are_remembered():
    live_set = LiveSet(("time_unix_ns", "name"))
    tables = Tables()
    batch = batch_of([event(EventKind.ALLOCATION, address=1, time_unix_ns=7, name="aten.mm.default")], tables)
    live_set.add(batch, np.arange(1))
    assert live_set.live().columns.keys() == {"time_unix_ns", "name"}
    assert live_set.live().columns["time_unix_ns"].tolist() == [7]


def test_addresses_of_all_64_bits_are_told_apart():
    addresses = [2**64 - 1, 2**63, 1]
    stream = [event(EventKind.ALLOCATION, address=address, size_bytes=1) for address in addresses]
    live_set = LiveSet()
    live_set.add(batch_of(stream, Tables()), np.arange(3))
    assert live_set.live().address.tolist() == sorted(addresses)
