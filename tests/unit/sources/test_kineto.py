"""A Kineto trace: what is in it, and what is made of it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal

import numpy as np
import pytest
from click.testing import CliRunner
from kineto_traces import ALIVE, BASE_NS, RESNET_2021, TORCH_2_13, call, memory, trace
from trace_processor import IMPORT_PROBLEMS

import memexport
from memexport.cli import main
from memexport.errors import InputError
from memexport.model import UNKNOWN_SIZE, Device, EventBatch, EventKind, Phase
from memexport.sources.kineto import KinetoSource

HIGHEST = """
    SELECT t.name, max(value) AS highest FROM counter JOIN counter_track AS t ON t.id = track_id
    GROUP BY t.name
"""
OPERATORS = "SELECT name, dur FROM slice WHERE category = 'operator'"
CPU_ONLY = ("cpu: torch counts what was allocated while it profiled, not what was there before",)
OUTSIDE = """
    SELECT slice.name FROM slice JOIN slice AS parent ON parent.id = slice.parent_id
    WHERE slice.category IS NOT NULL AND parent.category IS NOT NULL
    AND (slice.ts < parent.ts OR slice.ts + slice.dur > parent.ts + parent.dur)
"""
SAMPLES = pytest.mark.parametrize("sample", [RESNET_2021, TORCH_2_13], ids=["2021", "torch-2.13"])


@pytest.fixture
def source_of(tmp_path):
    """Open a trace of these events."""

    def open_(*events, **members):
        path = tmp_path / "trace.json"
        text = events[0] if events and isinstance(events[0], bytes) else trace(*events, **members)
        path.write_bytes(text)
        return KinetoSource(path)

    return open_


def everything(source):
    """All events in one batch."""
    return EventBatch.concat(list(source.batches()))


def rows(source, *columns, kind=None):
    """The events' columns, of one kind or all, strings looked up."""
    batch = everything(source)
    if kind is not None:
        batch = batch.select(batch.kind == kind)
    strings = source.tables.strings
    found = [
        [strings.get(i) for i in getattr(batch, c).tolist()]
        if c in ("name", "module", "thread")
        else getattr(batch, c).tolist()
        for c in columns
    ]
    return list(zip(*found, strict=True))


def replayed(path):
    """What plain Python makes of a file: memory events by device in order of time, in nanoseconds."""
    text = (gzip.decompress if path.suffix == ".gz" else bytes)(path.read_bytes())
    whole = json.loads(text, parse_float=Decimal)
    base = whole.get("baseTimeNanoseconds", 0)
    events = [event for event in whole["traceEvents"] if event["name"] == "[memory]"]
    events.sort(key=lambda event: event["ts"])
    devices = defaultdict(list)
    for event in events:
        args = event["args"]
        name = "cpu" if args["Device Type"] == 0 else f"cuda:{args['Device Id']}"
        devices[name].append((base + int(event["ts"] * 1000), args["Bytes"], args.get("Total Allocated")))
    return devices


def with_running_sums(changes):
    """The total after each change: what the file says, or else the running sum, over its lowest point."""
    sums = np.cumsum([change for _, change, _ in changes]).tolist()
    lowest = min(0, *sums)
    return [
        total if total is not None else value - lowest
        for (_, _, total), value in zip(changes, sums, strict=True)
    ]


@SAMPLES
def test_a_samples_memory_events_are_those_of_a_plain_replay_to_the_byte_and_nanosecond(sample):
    source, expected = KinetoSource(sample), replayed(sample)
    batch = everything(source)
    assert [str(device) for device in source.info.devices] == sorted(expected)
    for index, device in enumerate(source.info.devices):
        moves = (batch.kind == EventKind.ALLOCATION) | (batch.kind == EventKind.RELEASE)
        mine = batch.select(moves & (batch.device == index))
        signed = np.where(mine.kind == EventKind.ALLOCATION, mine.size_bytes, -mine.size_bytes)
        changes = expected[str(device)]
        assert mine.time_unix_ns.tolist() == [time for time, _, _ in changes]
        assert signed.tolist() == [change for _, change, _ in changes]
        assert mine.allocated_bytes.tolist() == with_running_sums(changes)


@SAMPLES
def test_a_samples_summary_has_the_peaks_and_ends_of_a_plain_replay(sample):
    with memexport.open(sample) as recording:
        summary = recording.summary()
    for name, changes in replayed(sample).items():
        totals = with_running_sums(changes)
        allocated = summary.devices[name].allocated
        assert (allocated.peak, allocated.end) == (max(totals), totals[-1])
        assert allocated.start == totals[0] - changes[0][1]


@SAMPLES
def test_a_samples_operators_are_all_there_once_in_the_order_of_their_ends(sample):
    source = KinetoSource(sample)
    whole = json.loads(gzip.decompress(sample.read_bytes()), parse_float=Decimal)
    base = whole.get("baseTimeNanoseconds", 0)
    expected = sorted(
        (base + int(event["ts"] * 1000), int(event["dur"] * 1000), event["name"])
        for event in whole["traceEvents"]
        if event.get("cat") in ("cpu_op", "Operator") and "#" not in event["name"]
    )
    found = rows(source, "time_unix_ns", "duration_ns", "name", kind=EventKind.OPERATOR)
    assert sorted(found) == expected
    batch = everything(source)
    ends = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
    assert (np.diff(ends) >= 0).all()


@SAMPLES
def test_a_samples_trace_opens_in_perfetto_without_errors_and_with_the_same_peak(
    sample, tmp_path, load_trace
):
    memexport.convert(sample, tmp_path / "sample.pftrace")
    with memexport.open(sample) as recording:
        summary = recording.summary()
    trace_ = load_trace(tmp_path / "sample.pftrace")
    assert not trace_.query(IMPORT_PROBLEMS)
    highest = {row["name"]: row["highest"] for row in trace_.query(HIGHEST)}
    for name, device in summary.devices.items():
        assert highest[f"{name} allocated"] == device.allocated.peak


@SAMPLES
def test_a_samples_slices_have_their_own_lengths_and_nest(sample, tmp_path, load_trace):
    memexport.convert(sample, tmp_path / "sample.pftrace")
    trace_ = load_trace(tmp_path / "sample.pftrace")
    slices = sorted((row["name"], row["dur"]) for row in trace_.query(OPERATORS))
    expected = sorted(rows(KinetoSource(sample), "name", "duration_ns", kind=EventKind.OPERATOR))
    assert [name for name, _ in slices] == [name for name, _ in expected]
    # A slice around one that begins at the same time is drawn from a nanosecond earlier.
    assert max(abs(a[1] - b[1]) for a, b in zip(slices, expected, strict=True)) <= 5
    assert trace_.query(OUTSIDE) == []


def test_the_2021_sample_says_that_it_has_no_totals():
    source = KinetoSource(RESNET_2021)
    assert source.end().warnings == (
        "cpu, cuda:0: the file has no totals, so allocated is counted from the lowest point: "
        "what was there all the time is missing",
    )
    assert everything(source).allocated_bytes.min() == -1
    assert not (everything(source).address).any()


def test_the_2021_samples_gpu_is_named_with_its_memory_and_only_if_it_was_used():
    assert KinetoSource(RESNET_2021).info.devices == [
        Device("cpu"),
        Device("cuda", 0, "Tesla V100-DGXS-32GB", capacity_bytes=34_084_028_416),
    ]


def test_the_2021_samples_steps_and_phases():
    source = KinetoSource(RESNET_2021)
    spans = rows(source, "name", "step", kind=EventKind.SPAN)
    assert [step for name, step in spans if name == "step"] == [16, 17, 18, 19, 20, 21]
    batch = everything(source)
    operators = batch.select(batch.kind == EventKind.OPERATOR)
    assert set(operators.phase.tolist()) == {Phase.UNKNOWN, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER}
    assert set(operators.step.tolist()) <= {-1, 16, 17, 18, 19, 20, 21}


def test_the_own_samples_operators_know_module_phase_and_step():
    source = KinetoSource(TORCH_2_13)
    found = rows(source, "name", "module", "phase", "step", kind=EventKind.OPERATOR)
    assert ("aten::addmm", "Sequential_0.Linear_1", Phase.FORWARD, 2) in found
    assert ("aten::mm", None, Phase.BACKWARD, 1) in found
    assert ("aten::sqrt", None, Phase.OPTIMIZER, 1) in found
    modules = rows(source, "name", "module", "phase", kind=EventKind.SPAN)
    assert modules.count(("Linear", "Sequential_0.Linear_0", Phase.FORWARD)) == 2
    assert ("batch", None, Phase.UNKNOWN) in modules


def test_the_own_sample_is_described_by_what_it_says_of_itself():
    info = KinetoSource(TORCH_2_13).info
    assert (info.format, info.producer, info.clock, info.host) == (
        "kinet" + "o",
        "torch.profiler",
        "unix",
        "vm",
    )
    assert info.options["with_modules"] == "1"
    assert info.pid is not None
    assert info.start_time_unix_ns == min(everything(KinetoSource(TORCH_2_13)).time_unix_ns)


@pytest.mark.parametrize(
    ("ts", "nanoseconds"),
    [
        ("1623143093496439", 1_623_143_093_496_439_000),
        ("1623143093496439.123", 1_623_143_093_496_439_123),
        ("1623143093496439.999", 1_623_143_093_496_439_999),
        ("4410544489712.434", 4_410_544_489_712_434),
        ("7999999999999.999", 7_999_999_999_999_999),
        ("0.001", 1),
        ("-12.5", -12_500),
        ("1.5e3", 1_500_000),
    ],
)
def test_times_are_exact_to_the_nanosecond(source_of, ts, nanoseconds):
    text = trace(memory(17, 512, 512), baseTimeNanoseconds=5).replace(b'"ts": 17', b'"ts": ' + ts.encode())
    assert everything(source_of(text)).time_unix_ns.tolist() == [nanoseconds + 5]


def test_exact_times_go_to_the_events_that_they_are_of(source_of):
    base = 1_623_143_093_496_000
    text = trace(
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": base + 1, "dur": 3},
        memory("@5.123", 8, 8, tid=2),
        call("aten::mm", "@4.127", 3.25),
        memory("@6.003", 8, 16, tid=2),
        baseTimeNanoseconds=0,
    )
    for digits in (b"5.123", b"4.127", b"6.003"):
        text = text.replace(b'"@' + digits + b'"', b"1623143093496" + digits[:1].rjust(3, b"0") + digits[1:])
    assert rows(source_of(text), "kind", "time_unix_ns", "duration_ns") == [
        (EventKind.ALLOCATION, base * 1000 + 5_123, -1),
        (EventKind.ALLOCATION, base * 1000 + 6_003, -1),
        (EventKind.OPERATOR, base * 1000 + 4_127, 3_250),
    ]


def test_the_base_time_may_stand_after_the_events(source_of):
    text = b'{"schemaVersion": 1, "traceEvents": [' + json.dumps(ALIVE).encode()
    source = source_of(text + b'], "baseTimeNanoseconds": 1790000000000000000}')
    assert everything(source).time_unix_ns.tolist() == [BASE_NS + 1_000]


def test_without_a_base_a_warning_says_that_times_are_not_since_1970(source_of):
    source = source_of(b'{"schemaVersion": 1, "traceEvents": [' + json.dumps(ALIVE).encode() + b"]}")
    assert source.end().warnings[-1] == (
        "the file has no baseTimeNanoseconds: its times do not count from 1970"
    )


def test_positive_bytes_are_an_allocation_and_negative_ones_a_release(source_of):
    source = source_of(
        memory(1.0, 512, 512, address=2**64 - 1), memory(2.0, -512, 0, address=2**64 - 1), memory(3.0, 0, 0)
    )
    assert rows(source, "kind", "size_bytes", "allocated_bytes", "address") == [
        (EventKind.ALLOCATION, 512, 512, 2**64 - 1),
        (EventKind.RELEASE, 512, 0, 2**64 - 1),
        (EventKind.SAMPLE, UNKNOWN_SIZE, 0, 0x1000),
    ]


def test_events_are_sorted_by_time_and_keep_the_files_order_where_that_is_the_same(source_of):
    source = source_of(
        memory(9.0, 1, 4, tid=1), memory(5.0, 2, 2, tid=2), memory(5.0, 1, 3, tid=1), memory(1.0, 0, 0, tid=3)
    )
    assert rows(source, "allocated_bytes") == [(0,), (2,), (3,), (4,)]
    assert source.end().warnings == CPU_ONLY


def test_totals_that_contradict_each_other_are_counted_in_a_warning(source_of):
    source = source_of(memory(1.0, 8, 8), memory(2.0, 8, 24), memory(3.0, -8, 16))
    everything(source)
    assert source.end().warnings[-1] == (
        "cpu: 1 of 3 totals are not the one before and the change since: "
        "threads overlap, or events are missing"
    )


def test_reserved_bytes_are_known_for_an_accelerator_but_not_for_the_cpu(source_of):
    source = source_of(memory(1.0, 8, 8), memory(2.0, 8, 8, device=(1, 3), reserved=2048))
    assert rows(source, "device", "reserved_bytes") == [(0, -1), (1, 2048)]
    assert [str(device) for device in source.info.devices] == ["cpu", "cuda:3"]


@pytest.mark.parametrize(
    ("number", "name"), [(12, "xpu:0"), (13, "mps:0"), (20, "privateuseone:0"), (77, "device type 77:0")]
)
def test_devices_have_torchs_names(source_of, number, name):
    assert [str(device) for device in source_of(memory(1.0, 8, 8, device=(number, 0))).info.devices] == [name]


def test_without_totals_the_running_sum_never_falls_below_zero(source_of):
    source = source_of(memory(1, 10), memory(2, -30), memory(3, 5))
    assert rows(source, "allocated_bytes") == [(30,), (0,), (5,)]
    assert source.end().warnings[0].startswith("cpu: the file has no totals")


def test_memory_is_counted_for_the_innermost_operator_on_its_thread(source_of):
    source = source_of(
        call("aten::linear", 0.0, 10.0), call("aten::addmm", 2.0, 5.0), call("aten::relu", 3.0, 5.0, tid=2),
        memory(1.0, 100, 100), memory(4.0, 30, 130), memory(5.0, -10, 120), memory(9.0, -1, 119),
        memory(11.0, 7, 126),
    )  # fmt: skip
    assert rows(source, "name", "size_bytes", "device", kind=EventKind.OPERATOR) == [
        ("aten::addmm", 20, 0), ("aten::relu", 0, -1), ("aten::linear", 99, 0),
    ]  # fmt: skip
    assert rows(source, "name", "size_bytes", kind=EventKind.ALLOCATION) == [
        ("aten::linear", 100), ("aten::addmm", 30), (None, 7),
    ]  # fmt: skip


def test_what_only_gets_memory_gets_it_for_its_caller_if_it_has_one(source_of):
    source = source_of(
        call("aten::ones", 0.0, 10.0), call("aten::empty", 2.0, 5.0), memory(3.0, 8, 8),
        call("aten::empty", 20.0, 5.0), memory(21.0, 8, 16),
    )  # fmt: skip
    assert rows(source, "kind", "name", "size_bytes") == [
        (EventKind.ALLOCATION, "aten::ones", 8),
        (EventKind.OPERATOR, "aten::empty", 0),
        (EventKind.OPERATOR, "aten::ones", 8),
        (EventKind.ALLOCATION, "aten::empty", 8),
        (EventKind.OPERATOR, "aten::empty", 8),
    ]


def test_an_operator_on_two_devices_is_the_accelerators(source_of):
    source = source_of(call("aten::to", 0, 9), memory(1, 8, 8, device=(1, 0)), memory(2, 4, 4))
    assert rows(source, "size_bytes", "device", kind=EventKind.OPERATOR) == [(12, 1)]


def test_where_calls_end_together_the_inner_one_comes_first(source_of):
    source = source_of(
        call("aten::outer", 1, 4), call("aten::inner", 1, 4), call("aten::last", 5, 0), memory(5, 8, 8)
    )
    assert [name for (name,) in rows(source, "name")] == [
        "aten::last",
        "aten::last",
        "aten::inner",
        "aten::outer",
    ]


def test_calls_that_overlap_without_nesting_count_memory_for_the_later_one(source_of):
    source = source_of(
        call("a::a", 0, 10), call("b::b", 5, 10), memory(7, 1, 1), memory(12, 1, 2), memory(16, 1, 3)
    )
    assert rows(source, "name", kind=EventKind.ALLOCATION) == [("b::b",), ("b::b",), (None,)]


def test_a_module_call_is_a_span_and_its_path_the_calls_around_it(source_of):
    source = source_of(
        call("nn.Module: Net_0", 0, 100, cat="python_function"),
        call("nn.Module: Linear_12", 10, 50, cat="python_function"),
        call("torch/nn/functional.py(1): linear", 11, 40, cat="python_function"),
        call("aten::addmm", 20, 20), memory(25, 8, 8), call("aten::relu", 70, 9),
    )  # fmt: skip
    assert rows(source, "kind", "name", "module", "phase") == [
        (EventKind.ALLOCATION, "aten::addmm", "Net_0.Linear_12", Phase.FORWARD),
        (EventKind.OPERATOR, "aten::addmm", "Net_0.Linear_12", Phase.FORWARD),
        (EventKind.SPAN, "Linear", "Net_0.Linear_12", Phase.FORWARD),
        (EventKind.OPERATOR, "aten::relu", "Net_0", Phase.FORWARD),
        (EventKind.SPAN, "Net", "Net_0", Phase.FORWARD),
    ]


@pytest.mark.parametrize(
    ("around", "phase"),
    [
        (call("autograd::engine::evaluate_function: AddmmBackward0", 0, 9), Phase.BACKWARD),
        (call("NllLossBackward", 0, 9, cat="Operator"), Phase.BACKWARD),
        (call("torch::autograd::AccumulateGrad", 0, 9), Phase.BACKWARD),
        (call("Optimizer.step#Adam.step", 0, 9, cat="user_annotation"), Phase.OPTIMIZER),
        (call("Optimizer.zero_grad#SGD.zero_grad", 0, 9, cat="Operator"), Phase.OTHER),
        (call("enumerate(DataLoader)#_Single.__next__", 0, 9, cat="user_annotation"), Phase.OTHER),
        (call("my annotation", 0, 9, cat="user_annotation"), Phase.UNKNOWN),
        (call("aten::threshold_backward", 0, 9), Phase.UNKNOWN),
    ],
)
def test_a_phase_is_given_where_something_says_it(source_of, around, phase):
    source = source_of(around, call("aten::mm", 2, 4), memory(3, 8, 8))
    assert rows(source, "name", "phase")[:2] == [("aten::mm", phase), ("aten::mm", phase)]


def test_a_module_called_in_backward_is_recomputed(source_of):
    source = source_of(
        call("autograd::engine::evaluate_function: CheckpointBackward", 0, 9),
        call("nn.Module: Linear_0", 1, 7, cat="python_function"), call("aten::mm", 2, 4), memory(3, 8, 8),
    )  # fmt: skip
    assert rows(source, "phase", kind=EventKind.OPERATOR) == [(Phase.RECOMPUTE,), (Phase.BACKWARD,)]


def test_a_step_is_a_span_and_holds_for_all_threads(source_of):
    source = source_of(
        call("ProfilerStep#4", 0, 10, cat="user_annotation"),
        call("ProfilerStep#5", 11, 10, cat="user_annotation"),
        call("aten::mm", 12, 3, tid=2), memory(3, 8, 8, tid=2), memory(30, 8, 16),
    )  # fmt: skip
    assert rows(source, "kind", "name", "step") == [
        (EventKind.ALLOCATION, None, 4),
        (EventKind.SPAN, "step", 4),
        (EventKind.OPERATOR, "aten::mm", 5),
        (EventKind.SPAN, "step", 5),
        (EventKind.ALLOCATION, None, -1),
    ]


def test_an_annotation_called_step_is_none_of_the_profilers_steps(source_of):
    source = source_of(
        call("ProfilerStep#4", 0, 10, cat="user_annotation"), call("step", 1, 2, cat="user_annotation"), ALIVE
    )
    assert rows(source, "name", "step", kind=EventKind.SPAN) == [("step", -1), ("step", 4)]


def test_threads_have_the_names_that_the_file_gives_them_and_numbers_may_be_text(source_of):
    named = {"ph": "M", "name": "thread_name", "pid": 7, "tid": "1", "args": {"name": "python"}}
    source = source_of(
        named, call("aten::mm", 0, 9, tid="1"), memory(1, 8, 8, tid=1), memory(2, 8, 16, tid=2)
    )
    assert rows(source, "thread") == [("thread 1 (python)",), ("thread 2",), ("thread 1 (python)",)]


def test_of_the_cpu_a_warning_says_that_torch_counts_from_when_it_profiled():
    assert KinetoSource(TORCH_2_13).end().warnings == CPU_ONLY


def test_a_thread_name_with_the_number_in_it_is_taken_as_it_is():
    assert rows(KinetoSource(TORCH_2_13), "thread")[0][0].startswith("thread ")


def test_rank_and_world_size_are_those_of_the_process_group(source_of):
    source = source_of(
        ALIVE, distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{}]}
    )
    assert (source.info.rank, source.info.world_size) == (3, 8)
    assert everything(source).rank.tolist() == [3]


def test_a_failed_request_is_a_marker_and_is_counted(source_of):
    failed = memory(2.0, 10**9, 512, name="[OutOfMemory]")
    source = source_of(ALIVE, failed)
    assert rows(source, "kind", "name", "size_bytes", "allocated_bytes")[1] == (
        EventKind.MARKER, "out of memory", 10**9, -1,
    )  # fmt: skip
    assert source.end().ooms == 1


def test_kernels_runtime_calls_flows_and_python_functions_are_passed_over(source_of):
    source = source_of(
        *(
            call("x", 0, 9, cat=cat)
            for cat in ("kernel", "gpu_memcpy", "cuda_runtime", "python_function", "Trace")
        ),
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 7, "tid": 1, "ts": 1},
        call("gpu step", 0, 9, cat="gpu_user_annotation"),
        ALIVE,
    )
    assert len(everything(source)) == 1
    assert source.end().warnings == CPU_ONLY


@pytest.mark.parametrize(
    ("flag", "reason"), [(None, "without profile_memory=True"), (1, "nothing was allocated")]
)
def test_a_trace_without_memory_events_is_refused_with_the_reason(source_of, flag, reason):
    members = {} if flag is None else {"profile_memory": flag}
    with pytest.raises(InputError, match=reason) as caught:
        source_of(call("aten::mm", 0, 1), **members)
    assert (caught.value.hint is None) == (flag == 1)


def test_the_command_line_exits_with_3_and_says_how_to_record_memory(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(trace(call("aten::mm", 0, 1)))
    result = CliRunner().invoke(main, ["summary", str(path)])
    assert result.exit_code == 3
    assert "has no [memory] events: it was recorded without profile_memory=True" in result.output
    assert "profile(profile_memory=True" in result.output


def test_memexports_own_chrome_trace_is_refused_with_the_reason(tmp_path):
    memexport.convert(TORCH_2_13, tmp_path / "own.json.gz")
    with pytest.raises(InputError, match="memexport wrote it"):
        memexport.open(tmp_path / "own.json.gz")


@pytest.mark.parametrize(
    ("head", "claimed"),
    [
        (b'{"schemaVersion": 1, "deviceProperties": [' + b" " * 70_000, True),
        (b'\xef\xbb\xbf {\n"traceEvents": [{"ph": "X"', True),
        (b'{"otherData": {}, "displayTimeUnit": "ms", "traceEvents": [', True),
        (b'{"traceEvents": []}', False),
        (b'[{"ph": "X", "traceEvents": 1}]', False),
        (b'{"kind": "marker", "time_unix_ns": 1}\n', False),
        (gzip.compress(b'{"schemaVersion": 1, "deviceProperties": []', mtime=0), True),
        (gzip.compress(b"nothing of the kind", mtime=0), False),
        (b"\x1f\x8b\x08 damaged", False),
    ],
)
def test_it_is_found_by_its_content(head, claimed):
    assert KinetoSource.sniff(head[:65_536]) == claimed


def test_a_plain_and_a_packed_file_give_the_same_events(tmp_path):
    (tmp_path / "plain.json").write_bytes(gzip.decompress(TORCH_2_13.read_bytes()))
    plain, packed = KinetoSource(tmp_path / "plain.json"), KinetoSource(TORCH_2_13)
    for column, values in everything(packed).columns().items():
        assert getattr(everything(plain), column).tolist() == values.tolist()


def test_the_fraction_read_ends_at_one():
    source = KinetoSource(TORCH_2_13)
    everything(source)
    assert source.fraction_read == 1
