"""Torch snapshots: plain data that torch's own viewer and memexport itself read back."""

from __future__ import annotations

import contextlib
import errno
import io
import pickle
import pickletools

import pytest
import torch
import torch.cuda._memory_viz as viewer
from made_recordings import START, Made

import memexport
from memexport.errors import OutputError
from memexport.exporters import FileDestination
from memexport.exporters.torch_snapshot import TorchSnapshotExporter
from memexport.model import Device, EventKind

# What the viewer at pytorch.org/memory_viz reads: torch/utils/viz/MemoryViz.js of torch 2.9.
VIEWERS_OPERATIONS = {
    *("APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE"),
    *("DICT", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET"),
    *("LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS"),
    *("SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
}
TRACKER = {"producer": "memexport", "devices": [Device("cpu")]}
KINETO = {"format": "memexport.archive", "origin": "kineto"}


class Life(Made):
    """A recording of allocations, with the counters that they make."""

    allocated = 0

    def allocate(self, number: int, size: int, begin: int = 0, **columns) -> None:
        """Append an ALLOCATION."""
        self.allocated += size
        given = {"device": 0, "allocated_bytes": self.allocated, "active_bytes": self.allocated, **columns}
        self.add(EventKind.ALLOCATION, begin, address=number, size_bytes=size, **given)

    def release(self, number: int, size: int, begin: int = 0, **columns) -> None:
        """Append a RELEASE."""
        self.allocated -= size
        given = {"device": 0, "allocated_bytes": self.allocated, "active_bytes": self.allocated, **columns}
        self.add(EventKind.RELEASE, begin, address=number, size_bytes=size, **given)


@pytest.fixture
def snapshot(tmp_path):
    """What a recording becomes."""

    def convert(made, size=1_000):
        path = tmp_path / "run.snapshot.pickle"
        path.unlink(missing_ok=True)
        return pickle.loads(made.write(TorchSnapshotExporter, path, size).read_bytes())

    return convert


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """An archive of a small training run on the CPU."""
    path = tmp_path_factory.mktemp("tracked") / "run.memx"
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    with memexport.Tracker(model, optimizer=optimizer, exporters=[path]) as tracker:
        for _ in range(3):
            model(torch.randn(8, 32)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()
    return path


def actions(trace):
    """Action, address and size of each entry."""
    return [(entry["action"], entry["addr"], entry["size"]) for entry in trace]


def blocks(found, state="active_allocated"):
    """The requested sizes of the blocks in this state."""
    return [b["requested_size"] for s in found["segments"] for b in s["blocks"] if b["state"] == state]


def check_segments(found):
    """Blocks fill their segment without a gap, and segments do not overlap."""
    end = 0
    for segment in sorted(found["segments"], key=lambda segment: segment["address"]):
        assert segment["address"] >= end
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end
            end += block["size"]
        assert end == segment["address"] + segment["total_size"]


def test_a_tracked_run_opens_in_torchs_viewer_and_peaks_where_it_did(tracked, tmp_path):
    path = tmp_path / "run.snapshot.pickle"
    memexport.convert(tracked, path)
    found = pickle.loads(path.read_bytes())
    check_segments(found)
    assert "2:0:aten.zeros_like.default" in viewer.memory(found, format_flamegraph=str)
    assert viewer.trace(found).startswith("Device 0")
    assert "total_allocated" in viewer.segsum(found)
    assert viewer.segments(found, format_flamegraph=str)
    with contextlib.redirect_stdout(io.StringIO()):
        assert viewer.compare(found["segments"], found["segments"], format_flamegraph=str) == ""
    before, after = (memexport.open(file).summary() for file in (tracked, path))
    assert (after.allocations, after.releases) == (before.allocations, before.releases)
    assert after.devices["cuda:0"].allocated == before.devices["cpu"].allocated
    assert after.devices["cuda:0"].active == before.devices["cpu"].active


def test_a_snapshot_can_be_recorded_live(tmp_path):
    path = tmp_path / "live.snapshot.pickle"
    with memexport.Tracker(exporters=[path]):
        held = torch.ones(1_000)
    found = pickle.loads(path.read_bytes())
    assert len(held) * 4 in blocks(found)


def test_the_pickle_names_nothing_that_could_run_and_suits_the_viewer(tracked, tmp_path):
    path = tmp_path / "run.snapshot.pickle"
    memexport.convert(tracked, path)
    used = {operation.name for operation, _, _ in pickletools.genops(path.read_bytes())}
    assert used <= VIEWERS_OPERATIONS


def test_a_release_is_requested_and_completed_and_what_was_there_before_is_a_block(snapshot):
    made = Life(**KINETO)
    made.allocate(0x1000, 512)
    made.marker("start", 0)
    made.allocate(0x2000, 256, 1_000)
    made.release(0x2000, 256, 2_000)
    found = snapshot(made)
    assert actions(found["device_traces"][0]) == [
        ("alloc", 0x2000, 256),
        ("free_requested", 0x2000, 256),
        ("free_completed", 0x2000, 256),
    ]
    assert [entry["time_us"] for entry in found["device_traces"][0]] == [
        (START + begin) // 1_000 for begin in (1_000, 2_000, 2_000)
    ]
    assert blocks(found) == [512]
    check_segments(found)


@pytest.mark.parametrize("size", [1, 2, 1_000])
def test_where_the_batches_are_cut_does_not_show(snapshot, size):
    made = Life(**KINETO)
    made.allocate(0x1000, 512)
    made.marker("start", 0)
    made.release(0x1000, 512, 1)
    made.add(EventKind.SAMPLE, 2, name="device_free", size_bytes=7, device=0)
    made.add(EventKind.MARKER, 2, name="oom", size_bytes=9, device=0)
    assert snapshot(made, size) == snapshot(made)
    assert snapshot(made)["device_traces"][0][-1]["device_free"] == 7


def test_numbers_of_storages_become_addresses_that_do_not_overlap(snapshot):
    made = Life(**TRACKER)
    for number in range(1, 5):
        made.allocate(number, 1_000)
    made.release(2, 1_000)
    made.allocate(5, 1_000)
    made.allocate(6, 5_000)
    found = snapshot(made)
    check_segments(found)
    addresses = [address for action, address, _ in actions(found["device_traces"][0]) if action == "alloc"]
    assert len(set(addresses)) == 5
    assert addresses[4] == addresses[1], "what was released is used again"
    assert sorted(blocks(found)) == [1_000] * 4 + [5_000]
    assert len(found["segments"]) == 1


def test_the_release_of_a_storage_that_was_never_seen_is_kept(snapshot):
    made = Life(**TRACKER)
    made.allocated = 64
    made.release(1, 64)
    (requested, completed) = actions(snapshot(made)["device_traces"][0])
    assert requested[1] == completed[1]


def test_segments_cover_all_that_was_ever_allocated(snapshot):
    made = Life(**KINETO)
    made.allocate(0x1000, 0x100)
    made.release(0x1000, 0x100)
    made.allocate(0x1080, 0x100)
    made.allocate(0x8000, 0x10)
    found = snapshot(made)
    assert [(s["address"], s["total_size"]) for s in found["segments"]] == [(0x1000, 0x180), (0x8000, 0x10)]
    check_segments(found)


def test_what_only_the_counters_know_of_is_a_block_behind_all_others(snapshot):
    made = Life(**KINETO)
    made.allocated = 1_000
    made.allocate(0x1000, 24, active_bytes=1_124, reserved_bytes=8_192)
    found = snapshot(made)
    assert sorted(blocks(found)) == [24, 1_000]
    assert blocks(found, "active_pending_free") == [100]
    assert sum(segment["total_size"] for segment in found["segments"]) == 8_192
    check_segments(found)


def test_the_operator_and_its_module_are_the_innermost_frame(snapshot):
    made = Life(**TRACKER)
    frames = [made.tables.strings.intern(text) for text in ("C:\\train.py:3:main", "model.py:7:forward")]
    stack = made.tables.stacks.intern(frames)
    made.allocate(1, 8, name="aten.mm.default", module="layers.0", stack=stack)
    made.allocate(2, 8, module="layers.1")
    first, second = snapshot(made)["device_traces"][0]
    assert first["frames"] == [
        {"name": "aten.mm.default", "filename": "layers.0", "line": 0},
        {"name": "forward", "filename": "model.py", "line": 7},
        {"name": "main", "filename": "C:\\train.py", "line": 3},
    ]
    assert second["frames"] == [{"name": "layers.1", "filename": "", "line": 0}]


def test_equal_stacks_are_one_object(snapshot):
    made = Life(**TRACKER)
    for number in range(1, 3_000):
        made.allocate(number, 8, name="aten.mm.default")
    trace = snapshot(made)["device_traces"][0]
    assert len({id(entry["frames"]) for entry in trace}) == 1
    assert [entry["size"] for entry in trace] == [8] * 2_999


def test_each_device_has_its_index_and_others_get_the_next_free_one(snapshot):
    devices = [Device("cpu"), Device("cuda", 2), Device("cuda", 0)]
    made = Life(**{**TRACKER, "devices": devices})
    for device in range(3):
        made.allocate(1, 10 + device, device=device)
    found = snapshot(made)
    assert [[entry["size"] for entry in trace] for trace in found["device_traces"]] == [[12], [10], [11]]
    assert {segment["device"] for segment in found["segments"]} == {0, 1, 2}
    assert found["allocator_settings"] == {"memexport: device 1": "cpu"}


def test_an_index_beyond_reason_is_no_place_in_a_list(snapshot):
    made = Life(**{**TRACKER, "devices": [Device("cuda", 2**31 - 1)]})
    made.allocate(1, 10)
    assert len(snapshot(made)["device_traces"]) == 1


def test_ranks_with_the_same_device_do_not_share_a_trace(snapshot):
    made = Life(**{**TRACKER, "devices": [Device("cuda", 0)]})
    made.allocate(1, 10, rank=0)
    made.allocate(1, 20, rank=1)
    found = snapshot(made)
    assert [[entry["size"] for entry in trace] for trace in found["device_traces"]] == [[10], [20]]
    assert found["allocator_settings"] == {
        "memexport: device 0": "rank 0 cuda:0",
        "memexport: device 1": "rank 1 cuda:0",
    }


def test_spans_are_annotations_by_time(snapshot):
    made = Life(**TRACKER)
    made.span("Linear", 2_000, 3_000, module="layers.0")
    made.span("step", 1_000, 9_000, step=4)
    found = [
        (a["stage"], a["name"], a["time_us"] - START // 1_000) for a in snapshot(made)["external_annotations"]
    ]
    assert found == [
        ("START", "step 4", 1),
        ("START", "layers.0", 2),
        ("END", "layers.0", 5),
        ("END", "step 4", 10),
    ]


def test_without_a_clock_entries_have_no_times(snapshot):
    made = Life(**TRACKER, clock="index", start_time_unix_ns=None)
    made.allocate(1, 10)
    made.span("step", 0, 9, step=1)
    found = snapshot(made)
    assert "time_us" not in found["device_traces"][0][0]
    assert found["external_annotations"] == []


def test_events_without_an_address_and_unknown_sizes_are_no_obstacle(snapshot):
    made = Life(**KINETO)
    made.allocate(0, 10)
    made.add(EventKind.ALLOCATION, 0, address=7, device=0)
    made.add(EventKind.ALLOCATION, 0, address=2**64 - 1, size_bytes=1, device=0)
    assert actions(snapshot(made)["device_traces"][0]) == [("alloc", 7, 0), ("alloc", 2**64 - 1, 1)]


def test_text_that_is_no_proper_unicode_is_kept(snapshot):
    made = Life(**TRACKER)
    made.allocate(1, 8, name="half \ud800", module="x" * 300)
    (entry,) = snapshot(made)["device_traces"][0]
    assert entry["frames"][0] == {"name": "half \ud800", "filename": "x" * 300, "line": 0}


def test_no_room_for_temporary_files_is_an_output_error(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    made = Life(**TRACKER)
    made.allocate(1, 8)
    exporter = TorchSnapshotExporter(FileDestination(tmp_path / "x.snapshot.pickle"))
    exporter.begin(made.info, made.tables)
    with pytest.raises(OutputError, match="set aside"):
        exporter.write(made.batches()[0])
    exporter.abort()
    assert list(tmp_path.iterdir()) == []
