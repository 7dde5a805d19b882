"""What the parts of a torch.cuda snapshot become as events."""

from __future__ import annotations

import pytest
from snapshot_files import (
    DRISSPG,
    MIB,
    SILMONT,
    TIME_US,
    TRAIN,
    YIYI,
    block,
    entry,
    frame,
    oom,
    segment,
    snapshot,
    written,
)

import memexport
from memexport.errors import InputError
from memexport.model import INDEX_CLOCK_NS, UNKNOWN_SIZE, EventBatch, EventKind
from memexport.sources.cuda_snapshot import CudaSnapshotSource

A, B, C = 1 << 30, 2 << 30, 3 << 30
STACK = ("train.py:3:main", "model.py:7:forward")


@pytest.fixture
def opened(tmp_path):
    """Opens what torch would have written."""
    return lambda content: CudaSnapshotSource(written(tmp_path, content))


@pytest.fixture
def events(opened):
    """The events of a snapshot as dicts, with texts for ids."""

    def read(content):
        source = opened(content)
        return [row for batch in source.batches() for row in rows(batch, source)]

    return read


def rows(batch: EventBatch, source: CudaSnapshotSource):
    """One dict for each event."""
    strings, stacks = source.tables.strings, source.tables.stacks
    columns = {name: column.tolist() for name, column in batch.columns().items()}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        row |= {name: strings.get(row[name]) for name in ("name", "module", "thread")}
        yield {
            **row,
            "kind": EventKind(row["kind"]),
            "stack": tuple(strings[f] for f in stacks.frames(row["stack"])),
        }


def of_trace(found):
    """What stands after the MARKER "start"."""
    return found[next(place for place, row in enumerate(found) if row["name"] == "start") + 1 :]


def before_trace(found):
    """What stands before the MARKER "start"."""
    return found[: next(place for place, row in enumerate(found) if row["name"] == "start")]


def shown(found, *names):
    """Some columns of each event."""
    return [tuple(row[name] for name in names) for row in found]


def warnings(source):
    """What the source says at its end."""
    for _ in source.batches():
        pass
    return " | ".join(source.end().warnings)


COUNTERS = ("allocated_bytes", "active_bytes", "reserved_bytes")

LIFE = [
    entry("segment_alloc", A, 2 * MIB, 0),
    entry("alloc", A, 100, 1, frames=TRAIN),
    entry("free_requested", A, 100, 2),
    entry("free_completed", A, 100, 3),
    entry("segment_free", A, 2 * MIB, 4),
]


def test_each_action_is_an_event_and_moves_its_own_counter(events):
    found = of_trace(events(snapshot(LIFE)))
    assert shown(found, "kind", "name", "size_bytes", "address", *COUNTERS) == [
        (EventKind.SAMPLE, "segment_alloc", 2 * MIB, A, 0, 0, 2 * MIB),
        (EventKind.ALLOCATION, None, 100, A, 100, 100, 2 * MIB),
        (EventKind.RELEASE, "free_requested", 100, A, 0, 100, 2 * MIB),
        (EventKind.SAMPLE, "free_completed", 100, A, 0, 0, 2 * MIB),
        (EventKind.SAMPLE, "segment_free", 2 * MIB, A, 0, 0, 0),
    ]
    assert [row["time_unix_ns"] for row in found] == [(TIME_US + at) * 1_000 for at in range(5)]
    assert found[1]["stack"] == STACK


def test_a_free_of_the_old_kind_is_requested_and_completed_at_once(events):
    found = of_trace(events(snapshot([entry("alloc", A, 100), entry("free", A, 100)])))
    assert shown(found, "kind", "name", *COUNTERS[:2]) == [
        (EventKind.ALLOCATION, None, 100, 100),
        (EventKind.RELEASE, "free", 0, 0),
    ]


def test_segments_that_are_mapped_piece_by_piece_move_reserved(events):
    trace = [
        entry("segment_map", A, 4 * MIB),
        entry("segment_map", A + 4 * MIB, 2 * MIB),
        entry("segment_unmap", A, 2 * MIB),
    ]
    listed = segment(A + 2 * MIB, 4 * MIB, is_expandable=True)
    found = events(snapshot(trace, segments=[listed]))
    assert [row["reserved_bytes"] for row in of_trace(found)] == [4 * MIB, 6 * MIB, 4 * MIB]
    assert shown(before_trace(found), "name", "reserved_bytes") == [(None, 0)]


def test_a_failed_request_is_a_marker_after_what_the_device_had_left(opened, events):
    content = snapshot([oom(3 * MIB, 1 * MIB), entry("snapshot", 0, 5)])
    found = of_trace(events(content))
    assert shown(found, "kind", "name", "size_bytes", "device") == [
        (EventKind.SAMPLE, "device_free", MIB, 0),
        (EventKind.MARKER, "oom", 3 * MIB, 0),
        (EventKind.MARKER, "snapshot", 5, 0),
    ]
    assert found[1]["stack"] == STACK
    source = opened(content)
    assert source.end().ooms == 1
    assert source.end().alloc_retries is None


def test_the_summary_lists_failed_requests_with_what_was_left_and_who_asked(tmp_path):
    path = written(tmp_path, snapshot([entry("alloc", A, 10), oom(3 * MIB, 1 * MIB, at=7)]))
    device = memexport.open(path).summary().to_dict()["devices"]["cuda:0"]
    assert device["failed_requests"] == [
        {
            "bytes": 3 * MIB,
            "device_free_bytes": MIB,
            "time_unix_ns": (TIME_US + 7) * 1_000,
            "stack": list(STACK),
            "operator": None,
            "module": None,
            "phase": None,
            "allocated_bytes": 10,
            "reserved_bytes": 0,
            "fragmentation_bytes": None,
            "categories": {"unattributed": 10},
            "modules": [{"module": None, "bytes": 10}],
            "operators": [{"operator": None, "bytes": 10}],
            "stacks": [],
        }
    ]


def test_what_the_user_said_names_an_allocation_and_a_moment(events):
    trace = [
        entry("alloc", A, 10, user_metadata="embedding", compile_context="N/A"),
        entry("alloc", B, 10, user_metadata="", compile_context="N/A"),
        entry("user_defined", 0, 0, user_metadata="epoch 3"),
        entry("user_defined", 0, 0),
    ]
    found = of_trace(events(snapshot(trace)))
    assert [row["name"] for row in found] == ["embedding", None, "epoch 3", "user_defined"]


def test_streams_are_threads_and_pointers_among_them_are_hexadecimal(events):
    pointer = 0x7F00_0000_1234
    found = of_trace(events(snapshot([entry("alloc", A, 1, stream=7), entry("alloc", B, 1, stream=pointer)])))
    assert [row["thread"] for row in found] == ["stream 7", "stream 0x7f0000001234"]


def test_what_lived_before_the_trace_comes_first_and_counts_at_the_start(events):
    trace = [entry("free_requested", A, 10, frames=TRAIN), entry("alloc", B, 7)]
    blocks = [block(B, 7), block(C, 30, frames=TRAIN)]
    waiting = segment(A, MIB, block(A, 10, "active_pending_free"))
    listed = [waiting, segment(B, MIB, blocks[0]), segment(C, MIB, blocks[1])]
    before = before_trace(events(snapshot(trace, segments=listed)))
    assert shown(before, "kind", "name", "address", "size_bytes") == [
        (EventKind.SAMPLE, "segment_alloc", A, MIB),
        (EventKind.SAMPLE, "segment_alloc", B, MIB),
        (EventKind.SAMPLE, "segment_alloc", C, MIB),
        (EventKind.ALLOCATION, None, C, 30),
        (EventKind.ALLOCATION, None, A, 10),
        (EventKind.SAMPLE, None, 0, UNKNOWN_SIZE),
    ]
    assert [before[3]["stack"], before[4]["stack"]] == [STACK, ()]
    assert shown(before[-1:], *COUNTERS) == [(40, 40, 3 * MIB)]
    assert {row["time_unix_ns"] for row in before} == {TIME_US * 1_000}


def test_segments_from_before_are_those_of_the_end_with_the_trace_undone(events):
    trace = [
        entry("segment_free", A, 2 * MIB),
        entry("segment_alloc", B, 4 * MIB),
        entry("segment_unmap", C + 2 * MIB, 2 * MIB),
    ]
    found = before_trace(events(snapshot(trace, segments=[segment(B, 4 * MIB), segment(C, 2 * MIB)])))
    assert shown(found, "address", "size_bytes")[:-1] == [(A, 2 * MIB), (C, 2 * MIB), (C + 2 * MIB, 2 * MIB)]


def test_sizes_are_those_requested_not_those_of_the_blocks(events):
    listed = segment(A, MIB, block(A, 1024, requested_size=1000), block(A + 1024, MIB - 1024, "inactive"))
    found = events(snapshot([], segments=[listed]))
    assert shown(found[-2:-1], *COUNTERS) == [(1000, 1000, MIB)]


@pytest.mark.parametrize("state", ["active_pending_free", "active_awaiting_free"])
def test_a_block_that_waits_for_a_stream_is_active_but_not_allocated(events, state):
    found = events(snapshot([], segments=[segment(A, MIB, block(A, MIB, state))]))
    assert shown(found[-2:-1], *COUNTERS) == [(0, MIB, MIB)]


def test_every_pool_counts_as_reserved(events):
    pools = [segment(A, MIB), segment(B, MIB, segment_pool_id=(0, 3))]
    assert events(snapshot([], segments=pools))[-2]["reserved_bytes"] == 2 * MIB


def test_a_list_of_segments_alone_says_what_is_live_by_stack(tmp_path):
    listed = segment(A, MIB, block(A, MIB, frames=TRAIN))
    path = written(tmp_path, [listed])
    summary = memexport.open(path).summary()
    device = summary.devices["cuda:0"]
    assert summary.clock == "index"
    assert (device.allocated.start, device.allocated.end) == (MIB, MIB)
    assert [(row.stack, row.bytes, row.count) for row in device.stacks_at_peak] == [(STACK, MIB, 1)]
    assert summary.ooms is None
    assert "recording was not on" in summary.warnings[0]


def test_a_snapshot_of_2023_keeps_its_history_and_its_order(tmp_path):
    summary = memexport.open(YIYI).summary()
    device = summary.devices["cuda:0"]
    assert device.allocated.end == 11840159744
    assert device.code_at_peak[0].stack[-1] == "pytorch_backend.py:190 allocate"
    assert device.code_at_peak[0].bytes == 168 * 44564480 or device.code_at_peak[0].count == 168


def test_without_times_events_are_counted(opened):
    source = opened(snapshot([entry("alloc", A, 1, None), entry("free", A, 1, None)]))
    times = [time for batch in source.batches() for time in batch.time_unix_ns.tolist()]
    assert source.info.clock == "index"
    assert source.info.start_time_unix_ns is None
    assert times == [n * INDEX_CLOCK_NS for n in range(4)]
    assert "no times" in warnings(source)


def test_times_that_tie_keep_the_order_of_the_list_and_earlier_ones_do_not_fall(opened, events):
    trace = [entry("alloc", A, 1, 5), entry("free", A, 1, 5), entry("alloc", A, 2, 3), entry("free", A, 2, 9)]
    found = of_trace(events(snapshot(trace)))
    assert [row["size_bytes"] for row in found] == [1, 1, 2, 2]
    assert [row["time_unix_ns"] // 1_000 - TIME_US for row in found] == [5, 5, 5, 9]
    assert "cuda:0: 1 entries are earlier" in warnings(opened(snapshot(trace)))


def test_the_traces_of_several_devices_are_one_stream_by_time(opened, events):
    content = snapshot(
        [entry("alloc", A, 1, 1), entry("alloc", B, 1, 4)],
        [],
        [entry("alloc", A, 2, 0), entry("alloc", B, 2, 4), entry("free", A, 2, 9)],
        segments=[segment(C, MIB, block(C, 5), device=3)],
    )
    found = of_trace(events(content))
    assert shown(found, "device", "address") == [(1, A), (0, A), (0, B), (1, B), (1, A)]
    source = opened(content)
    assert [str(device) for device in source.info.devices] == ["cuda:0", "cuda:2", "cuda:3"]
    before = before_trace(events(content))
    assert shown([row for row in before if row["kind"] == EventKind.ALLOCATION], "device", "size_bytes") == [
        (2, 5)
    ]


def test_devices_without_a_clock_come_one_after_another(events):
    content = snapshot([entry("alloc", A, 1, None)] * 2, [entry("alloc", B, 1, None)])
    assert [row["device"] for row in of_trace(events(content))] == [0, 0, 1]


def annotation(stage, name, at, device=0):
    """An entry of `external_annotations`."""
    return {"stage": stage, "name": name, "device": device, "time_us": TIME_US + at}


def test_annotations_are_spans_where_they_end(events):
    content = snapshot(
        [entry("alloc", A, 1, 10), entry("free", A, 1, 20), entry("alloc", A, 1, 30)],
        external_annotations=[
            annotation("START", "early", 0),
            annotation("END", "early", 5),
            annotation("START", "outer", 8),
            annotation("START", "inner", 9),
            annotation("END", "inner", 20),
            annotation("END", "outer", 25),
        ],
    )
    found = of_trace(events(content))
    named = [(row["name"], row["time_unix_ns"] // 1_000 - TIME_US, row["duration_ns"]) for row in found]
    assert named == [
        ("early", 0, 5_000),
        (None, 10, -1),
        ("free", 20, -1),
        ("inner", 9, 11_000),
        ("outer", 8, 17_000),
        (None, 30, -1),
    ]
    assert {row["kind"] for row in found if row["duration_ns"] >= 0} == {EventKind.SPAN}


def test_annotations_that_do_not_pair_reach_to_the_ends_of_the_trace(opened, events):
    content = snapshot(
        [entry("alloc", A, 1, 10), entry("free", A, 1, 50)],
        external_annotations=[
            annotation("END", "begun before", 30),
            annotation("START", "still open", 40),
            annotation("PAUSE", "neither", 45),
        ],
    )
    spans = [row for row in events(content) if row["kind"] == EventKind.SPAN]
    named = [(row["name"], row["time_unix_ns"] // 1_000 - TIME_US, row["duration_ns"]) for row in spans]
    assert named == [("begun before", 10, 20_000), ("still open", 40, 10_000)]
    said = warnings(opened(content))
    assert "1 annotations do not end" in said
    assert "1 annotations began before" in said
    assert "neither a START nor an END" in said


def test_frees_of_what_was_never_allocated_are_said_to_be_lost_entries(opened):
    content = snapshot([entry("free", A, 9), entry("alloc", A, 9), entry("free", A, 9)])
    assert "cuda:0: 1 of 2 frees are of memory whose allocation" in warnings(opened(content))
    assert "max_entries" in warnings(opened(content))


def test_a_trace_that_overflowed_is_said(opened):
    said = warnings(opened(snapshot(LIFE, trace_alloc_overflowed=True)))
    assert "overflowed" in said


def test_an_address_that_is_allocated_twice_is_said(opened):
    assert "1 allocations are at addresses" in warnings(opened(snapshot([entry("alloc", A, 1)] * 2)))


def test_a_negative_start_is_said_and_taken_as_nothing(opened):
    source = opened(snapshot([entry("alloc", A, 100)], segments=[segment(A, MIB, block(A, MIB, "inactive"))]))
    (last,) = list(source.batches())[-1].select(slice(-1, None)).allocated_bytes.tolist()
    assert last == 100
    said = warnings(source)
    assert "allocated begin at \N{MINUS SIGN}100 B (taken as 0 B)" in said
    assert "1 allocations are live when the trace ends, but not in the segments" in said


def test_no_counter_is_ever_negative_even_if_the_file_contradicts_itself(events):
    found = events(snapshot([entry("free", A, 10), entry("alloc", A, 10)]))
    assert [row["allocated_bytes"] for row in of_trace(found)] == [0, 10]


def test_a_block_that_was_freed_but_is_listed_as_allocated_is_said(opened):
    trace = [entry("alloc", A, 9), entry("free", A, 9)]
    source = opened(snapshot(trace, segments=[segment(A, MIB, block(A, 9))]))
    assert "1 blocks are allocated in the segments, but freed in the trace" in warnings(source)


def test_what_is_not_known_is_counted_and_left_out(opened, events):
    content = snapshot([entry("alloc", A, 1), entry("teleport", B, 1), entry("teleport", B, 1)], novelty=3)
    assert len(of_trace(events(content))) == 1
    said = warnings(opened(content))
    assert "2 entries were left out: memexport does not know the action 'teleport'" in said
    assert "novelty" in said


def test_compile_contexts_are_said_to_be_left_out(opened):
    said = warnings(opened(snapshot([entry("alloc", A, 1, compile_context="0/0"), entry("free", A, 1)])))
    assert "1 entries name the torch.compile call" in said


def test_real_files_say_what_is_wrong_with_them_and_nothing_else():
    assert warnings(CudaSnapshotSource(SILMONT)) == ""
    drisspg, yiyi = CudaSnapshotSource(DRISSPG).end().warnings, CudaSnapshotSource(YIYI).end().warnings
    assert len(drisspg) == 2
    assert "contradict" in drisspg[0]
    assert len(yiyi) == 1
    assert "no trace" in yiyi[0]


def test_the_allocators_settings_are_options(opened):
    source = opened(snapshot(LIFE, allocator_settings={"expandable_segments": True}))
    assert source.info.options["allocator_settings.expandable_segments"] == "true"
    assert source.info.options["record_stacks"] == "true"


def test_windows_paths_are_kept_and_their_own_code_is_found(tmp_path):
    frames = [
        frame("C:\\venv\\Lib\\site-packages\\torch\\nn\\modules\\linear.py", 125, "forward"),
        frame("C:\\work\\train.py", 12, "step"),
    ]
    path = written(tmp_path, snapshot([entry("alloc", A, 9, frames=frames)], segments=[]))
    device = memexport.open(path).summary().devices["cuda:0"]
    assert device.stacks_at_peak[0].stack[0] == "C:\\work\\train.py:12:step"
    assert device.code_at_peak[0].stack == ("train.py:12 step",)


def test_an_empty_snapshot_has_a_start_and_no_devices(opened, events):
    assert [row["name"] for row in events(snapshot())] == ["start"]
    assert opened(snapshot()).info.devices == []


def test_sizes_beyond_any_device_are_an_input_error(opened):
    with pytest.raises(InputError, match="more than any device"):
        opened(snapshot([entry("alloc", A + n, 2**61) for n in range(4)]))


def test_a_million_entries_become_events_within_half_a_second(tmp_path, benchmark_seconds):
    count = 200_000
    trace = []
    for number in range(count // 2):
        address = A + (number % 977) * 512
        trace += [entry("alloc", address, 512, number), entry("free", address, 512, number)]
    source = CudaSnapshotSource(written(tmp_path, snapshot(trace)))
    assert benchmark_seconds(lambda: [len(batch) for batch in source.batches()]) < 0.5 * count / 1e6 + 0.1
