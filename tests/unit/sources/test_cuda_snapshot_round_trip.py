"""A snapshot that is written back as one, through an archive, is the same in all that counts."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_files import (
    MIB,
    REAL,
    TRAIN,
    block,
    entry,
    oom,
    random_snapshot,
    segment,
    snapshot,
    written,
)

import memexport

A, B = 1 << 30, 2 << 30
SUMS = ("events", "allocations", "releases", "clock", "duration_ns", "devices", "markers", "ooms")


def through_an_archive(path, folder):
    """The file as a torch snapshot, with an archive in between."""
    memexport.convert(path, folder / "between.memx", overwrite=True)
    memexport.convert(folder / "between.memx", folder / "new.snapshot.pickle", overwrite=True)
    return folder / "new.snapshot.pickle"


def sums(path):
    """What a summary has of it, without how it was read."""
    summary = memexport.open(path).summary().to_dict()
    return {name: summary[name] for name in SUMS}


def entries(path):
    """The traces without what torch leaves out where it is empty."""
    content = pickle.loads(path.read_bytes())
    dropped = ("compile_context", "user_metadata")
    return [
        [{key: value for key, value in made.items() if key not in dropped and value != []} for made in trace]
        for trace in content["device_traces"]
    ]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_snapshots_keep_their_counters_their_stacks_and_their_entries(path, tmp_path):
    new = through_an_archive(path, tmp_path)
    assert sums(new) == sums(path)
    assert entries(new) == entries(path)


@given(st.integers(0, 2**32))
def test_what_an_allocator_did_is_kept(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("random")
    path = written(folder, random_snapshot(seed))
    new = through_an_archive(path, folder)
    before, after = sums(path), sums(new)
    # A free that was whole is written as the two that it stands for.
    for summary in (before, after):
        del summary["events"], summary["markers"], summary["duration_ns"]
        for device in summary["devices"].values():
            del device["peak_time_unix_ns"]
            for request in device["failed_requests"]:
                del request["time_unix_ns"]
    assert after == before


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_the_segments_are_those_of_the_snapshot(path, tmp_path):
    def mapped(file):
        segments = pickle.loads(file.read_bytes())["segments"]
        return sorted((s["address"], s["total_size"], s["stream"]) for s in segments)

    assert mapped(through_an_archive(path, tmp_path)) == mapped(path)


def test_what_the_user_said_and_annotated_and_what_failed_is_kept(tmp_path):
    content = snapshot(
        [entry("alloc", A, 5, 3, user_metadata="embedding", frames=TRAIN), oom(7, 9, 4)],
        [entry("user_defined", 0, 0, 1, user_metadata="epoch 1")],
        segments=[segment(A, MIB, block(A, 5), block(A + 5, MIB - 5, "inactive"))],
        external_annotations=[
            {"stage": "START", "name": "step", "device": 0, "time_us": 1_770_000_000_000_001},
            {"stage": "END", "name": "step", "device": 0, "time_us": 1_770_000_000_000_009},
        ],
        allocator_settings={"max_split_size": -1, "garbage_collection_threshold": 0.5, "x": {"1": True}},
    )
    new = pickle.loads(through_an_archive(written(tmp_path, content), tmp_path).read_bytes())
    assert new["device_traces"][0][0] == content["device_traces"][0][0]
    assert new["device_traces"][0][1] == content["device_traces"][0][1]
    assert new["device_traces"][1][0].items() >= content["device_traces"][1][0].items()
    assert new["external_annotations"] == content["external_annotations"]
    assert new["allocator_settings"] == content["allocator_settings"]


def test_blocks_that_wait_for_a_stream_are_kept(tmp_path):
    trace = [entry("alloc", A, 512), entry("free_requested", A, 512)]
    content = snapshot(trace, segments=[segment(A, 512, block(A, 512, "active_pending_free"))])
    new = pickle.loads(through_an_archive(written(tmp_path, content), tmp_path).read_bytes())
    assert [b["state"] for s in new["segments"] for b in s["blocks"]] == ["active_pending_free"]


def test_a_block_across_pieces_of_an_expandable_segment_stays_whole(tmp_path):
    trace = [
        entry("segment_map", A, MIB),
        entry("segment_map", A + MIB, MIB),
        entry("alloc", A + MIB // 2, MIB),
    ]
    blocks = [
        block(A, MIB // 2, "inactive"),
        block(A + MIB // 2, MIB),
        block(A + 3 * MIB // 2, MIB // 2, "inactive"),
    ]
    path = written(tmp_path, snapshot(trace, segments=[segment(A, 2 * MIB, *blocks, is_expandable=True)]))
    new = through_an_archive(path, tmp_path)
    (only,) = pickle.loads(new.read_bytes())["segments"]
    assert [(b["address"], b["size"], b["state"]) for b in only["blocks"]] == [
        (b["address"], b["size"], b["state"]) for b in blocks
    ]
    assert sums(new) == sums(path)


def nonsense(seed):
    """A snapshot whose parts have nothing to do with each other."""
    chance = random.Random(seed)
    actions = ["alloc", "free_requested", "free_completed", "free", "oom", "snapshot", "user_defined"]
    actions += ["segment_alloc", "segment_free", "segment_map", "segment_unmap", "teleport"]
    sizes, addresses = [0, 1, 512, 2 * MIB, 2**40], [0, A, A + 256, A + 512, B, 2**63, 2**64 - 1]

    def made():
        more = {"device_free": chance.choice(sizes), "frames": chance.choice([[], TRAIN])}
        stream = chance.choice([0, 7, 2**47, 2**64 - 1])
        action, size = chance.choice(actions), chance.choice(sizes)
        return entry(
            action, chance.choice(addresses), size, chance.randint(-9, 9), **{**more, "stream": stream}
        )

    def region():
        states = ["active_allocated", "active_pending_free", "inactive"]
        blocks = [
            block(chance.choice(addresses), chance.choice(sizes), chance.choice(states)) for _ in range(3)
        ]
        return segment(
            chance.choice(addresses), chance.choice(sizes), *blocks, device=chance.choice([0, 1, 5])
        )

    traces = [[made() for _ in range(chance.randint(0, 30))] for _ in range(2)]
    return snapshot(*traces, segments=[region() for _ in range(chance.randint(0, 4))])


@settings(max_examples=200)
@given(st.integers(0, 2**32))
def test_a_snapshot_that_makes_no_sense_is_read_and_written_all_the_same(tmp_path_factory, seed):
    folder = tmp_path_factory.mktemp("nonsense")
    path = written(folder, nonsense(seed))
    for device in memexport.open(path).summary().devices.values():
        assert min(device.allocated.start, device.active.start, device.reserved.start) >= 0
        assert min(device.allocated.end, device.active.end, device.reserved.end) >= 0
    new = through_an_archive(path, folder)
    for found in pickle.loads(new.read_bytes())["segments"]:
        end = found["address"]
        for part in found["blocks"]:
            assert part["address"] == end
            end += part["size"]
        assert end == found["address"] + found["total_size"]
    assert memexport.open(new).summary().allocations > -1
