"""Pickles that were changed anyhow are read or refused, soon, and never do anything else."""

from __future__ import annotations

import pickle
import pickletools
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memexport.errors import InputError
from memexport.model import EventBatch, Tables
from memexport.sources._snapshot import TRACE_COLUMNS
from memexport.sources._snapshot_pickle import read_snapshot
from memexport.sources.memory_tracker import MemoryTrackerSource

DATA = Path(__file__).parents[1] / "data"
PAYLOAD = b"cos\nsystem\n(X\x0c\x00\x00\x00touch canarytR."


def long_trace(protocol: int) -> bytes:
    """A snapshot whose entries are alike, so that most of them are read at once."""
    frames = [{"name": f"f{n}", "filename": "train.py", "line": n} for n in range(9)]
    trace = [
        {"action": "alloc", "addr": 0x7F0000000000 + 512 * n, "size": n * 99, "stream": 0}
        | {"time_us": 1_700_000_000_000_000 + n, "user_metadata": str(n % 3)}
        | {"frames": frames[n % 7 :]}
        for n in range(300)
    ]
    blocks = [{"address": 5, "size": 8, "state": "inactive", "frames": frames}] * 3
    segment = {"address": 5, "total_size": 99, "blocks": blocks[:1], "segment_pool_id": (0, 0)}
    return pickle.dumps({"segments": [segment], "device_traces": [trace]}, protocol)


SNAPSHOTS = [
    *(path.read_bytes() for path in sorted((DATA / "snapshots").glob("*.pickle"))),
    *(long_trace(protocol) for protocol in (2, 4, 5)),
]
TRACKERS = [(DATA / "legacy_conv.pickle").read_bytes()]

codes = st.sampled_from([known.code.encode("latin-1") for known in pickletools.opcodes])
insertions = st.one_of(codes, codes, st.binary(max_size=9), st.just(PAYLOAD), st.just(b"\xff" * 8))


@st.composite
def changed(draw, originals):
    """An original with bytes replaced, put in, moved or cut off."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(("flip", "insert", "replace", "splice", "cut"))):
            case "flip":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "insert":
                data[at:at] = draw(insertions)
            case "replace":
                inserted = draw(insertions)
                data[at : at + len(inserted)] = inserted
            case "splice":
                begin = draw(st.integers(0, len(data)))
                data[at:at] = data[begin : begin + draw(st.integers(0, 3_000))]
            case "cut":
                del data[at : at + draw(st.sampled_from((1, 2, 50, len(data))))]
    return bytes(data)


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Reads a pickle with a reader; nothing but an InputError may come, within seconds, and no file."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = tmp_path / "fuzzed.pickle"

    def read(data, reader):
        path.write_bytes(data)
        begin = time.process_time()
        try:
            reader(path)
        except InputError as error:
            assert error.path == str(path)
        assert time.process_time() - begin < 5
        assert not list(folder.iterdir())

    return read


def snapshot_of(path):
    """A snapshot that is sound in itself, whatever it says."""
    tables = Tables()
    snapshot = read_snapshot(path, tables)
    for trace in snapshot.traces:
        assert {name: column.dtype for name, column in trace.items()} == dict(TRACE_COLUMNS)
        assert len({len(column) for column in trace.values()}) == 1
        assert trace["action"].max(initial=0) < max(len(snapshot.actions), 1)
        assert trace["stack"].max(initial=0) < len(tables.stacks)
        assert trace["user_metadata"].max(initial=0) < len(tables.strings)
    if len(snapshot.blocks["segment"]):
        assert snapshot.blocks["segment"].max() < len(snapshot.segments["address"])


def recording_of(path):
    """All events of a tracker's pickle."""
    EventBatch.concat(list(MemoryTrackerSource(path).batches()))


patient = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(changed(SNAPSHOTS))
@patient
def test_a_changed_snapshot_is_read_or_refused(check, data):
    check(data, snapshot_of)


@given(changed(TRACKERS))
@patient
def test_a_changed_tracker_pickle_is_read_or_refused(check, data):
    check(data, recording_of)


@given(st.binary(max_size=300), st.integers(2, 5))
@patient
def test_noise_is_refused(check, noise, protocol):
    for reader in (snapshot_of, recording_of):
        check(noise, reader)
        check(bytes([0x80, protocol]) + noise, reader)
