"""Snapshots are decoded as pickle would load them, however they are written and cut into windows."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legacy_pickles import LEGACY_CONV
from snapshot_pickles import SnapshotMaker, expected, pickled, read_as_plain

from memexport.errors import InputError
from memexport.model import Tables
from memexport.sources._snapshot import BLOCK_COLUMNS, SEGMENT_COLUMNS, TRACE_COLUMNS
from memexport.sources._snapshot_pickle import read_snapshot, sniff
from memexport.sources._snapshot_runs import Runs

REAL = sorted((Path(__file__).parents[2] / "data" / "snapshots").glob("*.pickle"))
WINDOW = 2**20
FRAME = {"filename": "train.py", "line": 3, "name": "step"}
SEGMENT = {"address": 4096, "total_size": 1024, "stream": 0, "device": 0, "segment_type": "small"}


def entry(**values):
    """An allocation."""
    return {"action": "alloc", "addr": 64, "size": 8, "stream": 0, "time_us": 5, **values}


def trace(*entries, **more):
    """What comes of a snapshot with one trace."""
    return read_as_plain(pickle.dumps({"segments": [], "device_traces": [list(entries)], **more}), WINDOW)


def blocks(*made):
    """What comes of the blocks of a segment."""
    return read_as_plain(pickle.dumps([{**SEGMENT, "blocks": list(made)}]), WINDOW)["blocks"]


@pytest.fixture
def refused(tmp_path):
    """Where an error says that a snapshot is wrong, and what it says."""

    def read(value):
        path = tmp_path / "wrong.pickle"
        path.write_bytes(pickle.dumps(value))
        with pytest.raises(InputError) as caught:
            read_snapshot(path, Tables())
        return caught.value.where, caught.value.what

    return read


@given(
    st.integers(0, 2**32),
    st.sampled_from((0, 3, 60, 400, 1_500)),
    st.sampled_from((0.0, 0.02, 0.3)),
    st.integers(2, 5),
    st.sampled_from(("c", "c", "python", "optimized")),
    st.sampled_from((64, 700, 5_000, WINDOW)),
)
@settings(max_examples=120)
def test_a_snapshot_reads_as_pickle_loads_it(seed, events, odd, protocol, pickler, window_bytes):
    data = pickled(SnapshotMaker(seed, odd=odd).snapshot(events), protocol, pickler)
    assert read_as_plain(data, window_bytes) == expected(data)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
@pytest.mark.parametrize("window_bytes", [64, 5_000, WINDOW])
def test_a_real_snapshot_reads_as_pickle_loads_it(path, window_bytes):
    data = path.read_bytes()
    assert sniff(data[:65_536])
    assert read_as_plain(data, window_bytes) == expected(data)


@pytest.mark.parametrize("pickler", ["c", "python", "optimized"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nearly_all_entries_of_a_long_trace_are_read_at_once(protocol, pickler, monkeypatch):
    read, fast = Runs.read, []

    def counted(runs, rows):
        before = rows.count
        result = read(runs, rows)
        fast.append(rows.count - before)
        return result

    monkeypatch.setattr(Runs, "read", counted)
    stack = [{**FRAME, "line": number} for number in range(40)]
    entries = [entry(addr=n << 30, size=n, frames=stack[n % 9 :]) for n in range(5_000)]
    data = pickled({"segments": [], "device_traces": [entries]}, protocol, pickler)
    assert read_as_plain(data, 20_000) == expected(data)
    assert sum(fast) > 4_500


def test_the_file_has_the_innermost_frame_first_and_a_stack_the_outermost():
    (read,) = trace(entry(frames=[FRAME, {**FRAME, "name": "main", "line": 9}]))["traces"][0]
    assert read["stack"] == ("train.py:9:main", "train.py:3:step")


def test_a_stack_of_thousands_of_frames_is_kept():
    frames = [{**FRAME, "line": number} for number in range(2_500)]
    for read in trace(entry(frames=frames), *[entry(frames=list(frames)) for _ in range(9)])["traces"][0]:
        assert read["stack"][0] == "train.py:2499:step"
        assert len(read["stack"]) == 2_500


def test_a_bare_list_of_segments_is_a_snapshot_without_traces():
    data = pickle.dumps([{**SEGMENT, "blocks": [{"size": 8, "state": "inactive"}]}])
    read = read_as_plain(data, WINDOW)
    assert sniff(data)
    assert read["traces"] == []
    assert [segment["address"] for segment in read["segments"]] == [4096]


def test_blocks_without_address_lie_behind_one_another():
    made = [{"size": size, "state": "inactive"} for size in (8, 16, 32)]
    assert [block["address"] for block in blocks(*made)] == [4096, 4104, 4120]


def test_the_latest_entry_of_a_history_comes_first_and_says_what_was_asked_for():
    latest = {"addr": 4096, "real_size": 5, "frames": [FRAME]}
    history = [latest, {"addr": 4096, "real_size": 7, "frames": []}]
    (read,) = blocks({"size": 8, "state": "active_allocated", "history": history})
    assert read["requested_size"] == 5
    assert read["stack"] == ("train.py:3:step",)


def test_what_is_missing_is_null():
    (read,) = trace({"action": "oom", "size": 9, "device_free": 7})["traces"][0]
    nulls = {"address": 0, "time_us": -1, "stack": (), "compile_context": None, "user_metadata": None}
    assert read == {"action": "oom", "size": 9, "device_free": 7, "stream": 0, **nulls}
    assert blocks({"size": 8, "state": "inactive"})[0]["requested_size"] == -1


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ("", None),
        (None, None),
        ("step 3", "step 3"),
        ({"step": 3, "tags": ["a", None]}, '{"step":3,"tags":["a",null]}'),
        ("\ud83d", "\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        (b"raw", '"raw"'),
    ],
)
def test_metadata_is_text(metadata, text):
    for read in trace(*[entry(user_metadata=metadata) for _ in range(9)])["traces"][0]:
        assert read["user_metadata"] == text


def test_what_is_not_understood_is_counted_and_never_fatal():
    read = trace(
        *[entry(action="teleport", color=n, frames=[{**FRAME, "column": 3}]) for n in range(7)],
        host_traces=[[entry()]],
        host_segments=[],
    )
    assert read["actions"] == ["teleport"]
    assert read["ignored"] == {
        "key 'color' of a trace entry": 7,
        "key 'column' of a frame": 7,
        "key 'host_traces' of the snapshot": 1,
        "key 'host_segments' of the snapshot": 1,
    }


@pytest.mark.parametrize(
    ("value", "flag"), [(True, True), (False, False), ([False, True], True), (None, None)], ids=repr
)
def test_an_overflow_is_known_from_the_settings_or_the_snapshot(value, flag):
    assert trace(trace_alloc_overflowed=value)["overflowed"] is flag
    assert trace(allocator_settings={"trace_alloc_overflowed": value})["overflowed"] is flag


def test_a_trace_that_two_devices_share_is_both_of_theirs():
    shared = [entry(addr=n) for n in range(20)]
    read = read_as_plain(pickle.dumps({"device_traces": [shared, [], shared]}), WINDOW)
    assert [len(rows) for rows in read["traces"]] == [20, 0, 20]


def test_lists_may_be_tuples_or_be_made_elsewhere():
    made = [entry(frames=(FRAME,)) for _ in range(9)]
    plain = pickle.dumps({"device_traces": [made]})
    for value in ({"device_traces": (tuple(made),)}, {"x": made, "device_traces": [made]}):
        assert read_as_plain(pickle.dumps(value), WINDOW)["traces"] == expected(plain)["traces"]


def test_columns_are_read_only_and_of_the_types_that_are_promised():
    snapshot = read_snapshot(REAL[0], Tables())
    for columns, dtypes in (
        *((made, TRACE_COLUMNS) for made in snapshot.traces),
        (snapshot.segments, SEGMENT_COLUMNS),
        (snapshot.blocks, BLOCK_COLUMNS),
    ):
        assert {name: column.dtype for name, column in columns.items()} == dict(dtypes)
        assert not any(column.flags.writeable for column in columns.values())


def test_progress_grows_to_one(tmp_path):
    path, fractions = tmp_path / "long.pickle", []
    path.write_bytes(pickle.dumps({"device_traces": [[entry(addr=n) for n in range(100_000)]]}))
    read_snapshot(path, Tables(), fractions.append)
    assert fractions == sorted(fractions)
    assert len(fractions) > 2
    assert fractions[-1] == 1.0


def test_a_name_of_ten_megabytes_is_kept(tmp_path):
    name = "n" * 10_000_000
    (read,) = trace(entry(frames=[{**FRAME, "name": name}]))["traces"][0]
    assert read["stack"] == (f"train.py:3:{name}",)


def test_an_error_says_which_entry_is_wrong_and_why(refused):
    good = [entry() for _ in range(17)]
    where, what = refused({"segments": [], "device_traces": [[], [*good, entry(addr=-1)]]})
    assert where == "device_traces[1][17]"
    assert what.startswith("addr is -1; this is not what torch.cuda.memory._dump_snapshot writes")


def test_an_error_says_which_block_is_wrong_and_why(refused):
    good = {**SEGMENT, "blocks": [{"size": 8, "state": "inactive"}] * 0}
    where, what = refused([good, {**SEGMENT, "blocks": [{"size": 2**64, "state": "inactive"}]}])
    assert where == "segments[1].blocks[0]"
    assert "size is 18446744073709551616" in what


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        read_snapshot(tmp_path / "missing", Tables())


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [1, 2],
        "device_traces",
        {"text": "a b", "segments": [{"id": 0, "start": 1.0, "text": "a b"}]},
        {"memories_allocated": {0: ("segments", 1.0)}},
        {"x": np.arange(3)},
    ],
    ids=str,
)
def test_other_pickles_are_not_claimed(value):
    assert not sniff(pickle.dumps(value))


def test_a_tracker_pickle_is_not_claimed():
    assert not sniff(LEGACY_CONV.read_bytes())
