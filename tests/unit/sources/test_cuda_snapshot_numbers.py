"""The counters of a snapshot, and what lived at its peak, equal those of a slow replay of the pickle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_files import REAL, SILMONT, YIYI, random_snapshot, written
from snapshot_replay import live_at_peak, replay

import memexport


def counters(path):
    """The counters of every device, as `memexport summary --json` has them."""
    devices = memexport.open(path).summary().to_dict()["devices"]
    return {
        name: {key: device[key] for key in ("allocated", "active", "reserved")}
        for name, device in devices.items()
    }


def stacks_at_peak(path, device):
    """Bytes by stack, as `memexport summary` has them."""
    found = memexport.open(path).summary().devices[device].stacks_at_peak
    return {row.stack or (): row.bytes for row in found}


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_start_peak_and_end_of_real_snapshots_are_exact(path):
    assert counters(path) == replay(path)


def test_a_known_real_peak():
    allocated = counters(SILMONT)["cuda:0"]["allocated"]
    assert allocated["start"] == 0
    assert round(allocated["peak"] / 2**20, 1) == 3098.6


@given(st.integers(0, 2**32))
def test_start_peak_and_end_are_exact_whatever_the_allocator_did(tmp_path_factory, seed):
    path = written(tmp_path_factory.mktemp("random"), random_snapshot(seed))
    assert counters(path) == replay(path)


@pytest.mark.parametrize("path", [SILMONT, YIYI], ids=lambda path: path.stem)
def test_real_stacks_at_the_peak_are_exact(path):
    expected = live_at_peak(path, 0)
    assert stacks_at_peak(path, "cuda:0") == dict(expected.most_common(20))
    assert sum(expected.values()) == counters(path)["cuda:0"]["allocated"]["peak"]


@given(st.integers(0, 2**32))
def test_what_is_live_at_the_peak_adds_up_to_it_and_has_its_stacks(tmp_path_factory, seed):
    path = written(tmp_path_factory.mktemp("random"), random_snapshot(seed))
    for name, device in memexport.open(path).summary().devices.items():
        expected = live_at_peak(path, int(name.removeprefix("cuda:")))
        assert sum(expected.values()) == device.allocated.peak
        if any(expected):
            assert {row.stack or (): row.bytes for row in device.stacks_at_peak} == expected
        assert sum(device.categories_at_peak.values()) == device.allocated.peak


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_a_perfetto_trace_of_a_real_snapshot_loads_and_peaks_where_it_does(path, tmp_path, load_trace):
    memexport.convert(path, tmp_path / "run.pftrace")
    trace = load_trace(tmp_path / "run.pftrace")
    assert trace.import_problems() == []
    (highest,) = trace.query(
        "SELECT CAST(max(value) AS INT) AS peak FROM counter JOIN counter_track t ON counter.track_id = t.id "
        "WHERE t.name GLOB '*allocated*'"
    )
    assert highest["peak"] == counters(path)["cuda:0"]["allocated"]["peak"]
