"""What Perfetto's own importer finds in the traces that PerfettoExporter writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_recordings import START, Made, two_steps
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from trace_processor import TraceProcessor

from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import INDEX_CLOCK_NS, Device, EventKind, RecordingEnd

Load = Callable[[Path], TraceProcessor]

SLICES = """
    SELECT slice.ts, dur, slice.name, category, depth, coalesce(thread.name, track.name) AS track
    FROM slice JOIN track ON track.id = slice.track_id
    LEFT JOIN thread_track ON thread_track.id = track.id LEFT JOIN thread USING (utid)
    WHERE category IS NOT NULL ORDER BY slice.ts, depth
"""
PARENTS = """
    SELECT slice.name AS name, parent.name AS parent
    FROM slice LEFT JOIN slice AS parent ON parent.id = slice.parent_id WHERE slice.category IS NOT NULL
"""
COUNTERS = """
    SELECT t.name, count(*) AS samples, max(value) AS highest FROM counter JOIN counter_track AS t
    ON t.id = track_id GROUP BY 1 ORDER BY 1
"""
INSTANTS = """
    SELECT slice.ts, slice.name FROM slice JOIN track ON track.id = track_id
    WHERE track.name = 'markers' ORDER BY slice.ts, slice.id
"""
ANNOTATIONS = """
    SELECT substr(key, 7) AS name, coalesce(string_value, int_value) AS value
    FROM slice JOIN args USING (arg_set_id) WHERE key GLOB 'debug.*' AND slice.name = '{}'
"""

plain = partial(PerfettoExporter, compress=False)


@pytest.fixture
def processor(load_trace: Load, tmp_path: Path) -> TraceProcessor:
    """Two steps, loaded; batches of 7 cut every span from what is in it."""
    return load_trace(two_steps().write(PerfettoExporter, tmp_path / "two.pftrace", size=7))


def annotations(processor: TraceProcessor, name: str) -> dict[str, object]:
    """The annotations of the slices of that name."""
    return {row["name"]: row["value"] for row in processor.query(ANNOTATIONS.format(name))}


def test_nothing_is_refused_or_lost(processor: TraceProcessor) -> None:
    """No error and no loss is counted."""
    assert processor.import_problems() == []


def test_every_slice_has_its_time_and_category(processor: TraceProcessor) -> None:
    """Operators and spans of the first step, relative to the recording's start."""
    rows = [tuple(row.values())[:4] for row in processor.query(SLICES) if row["ts"] < 50_000]
    assert rows == [
        (500, 20_000, "step 0", "step"),
        (1_000, 11_000, "forward", "phase"),
        (1_100, 10_500, "Net", "module"),
        (1_200, 10_000, "net.fc", "module"),
        (1_500, 2_000, "aten::addmm", "operator"),
        (5_000, 2_000, "aten::relu_", "operator"),
        (9_000, 2_000, "prims::sum", "operator"),
        (13_000, 500, "validate", "annotation"),
    ]


def test_slices_nest_as_modules_do(processor: TraceProcessor) -> None:
    """Step, phase, module and operator stand in each other, also when written in different batches."""
    parents = {(row["name"], row["parent"]) for row in processor.query(PARENTS)}
    assert parents == {
        *((f"step {step}", None) for step in (0, 1)),
        *(("forward", f"step {step}") for step in (0, 1)),
        *(("validate", f"step {step}") for step in (0, 1)),
        ("Net", "forward"),
        ("net.fc", "Net"),
        *((name, "net.fc") for name in ("aten::addmm", "aten::relu_", "prims::sum")),
    }


def test_counters_have_every_change_and_the_peak(processor: TraceProcessor) -> None:
    """In bytes, and none for the one that is not known."""
    assert processor.query(COUNTERS) == [
        {"name": "cuda:0 allocated", "samples": 6, "highest": 5608.0},
        {"name": "cuda:0 reserved", "samples": 1, "highest": float(1 << 20)},
    ]
    assert processor.scalar("SELECT group_concat(DISTINCT unit) FROM counter_track") == "bytes"


def test_counters_lie_under_the_only_process(processor: TraceProcessor) -> None:
    """So the UI opens it on load."""
    assert processor.scalar("SELECT count(*) FROM process_counter_track") == 2


def test_markers_are_instants_at_their_time(processor: TraceProcessor) -> None:
    """Also the peak, which comes last."""
    found = [(row["ts"], row["name"]) for row in processor.query(INSTANTS)]
    assert found == [
        (0, "recording"),
        (0, "step"),
        (100_000, "step"),
        (111_000, "peak"),
        (120_500, "recording end"),
    ]


def test_operators_say_their_module_and_bytes(processor: TraceProcessor) -> None:
    """And a module call its class."""
    assert annotations(processor, "aten::relu_")["module"] == "net.fc"
    assert {row["value"] for row in processor.query(ANNOTATIONS.format("aten::relu_"))} == {
        "net.fc", -256, 1256, 3560
    }  # fmt: skip
    assert annotations(processor, "net.fc") == {"class": "Linear"}


def test_the_recording_says_what_it_is(processor: TraceProcessor) -> None:
    """Producer, versions, command line, start and warnings are annotations of the two outermost markers."""
    about = annotations(processor, "recording")
    assert about["producer"] == "test" and about["command_line"] == "train.py --lr 0.1"
    assert about["time_zero_unix_ns"] == START and about["time_zero_utc"] == "2025-06-15T15:06:40.123456789Z"
    end = {"warning 1": "two things are missing", "dropped_events": 2, "alloc_retries": 0}
    assert annotations(processor, "recording end") == end


def test_the_main_thread_is_known_as_such(processor: TraceProcessor) -> None:
    """Its tid is the pid; the process is named for the rank."""
    assert processor.query("SELECT name, tid, is_main_thread AS main FROM thread WHERE tid > 0") == [
        {"name": "MainThread", "tid": 4000, "main": 1}
    ]
    assert processor.scalar("SELECT name FROM process WHERE pid = 4000") == "rank 0"


def test_compression_changes_nothing_but_the_size(load_trace: Load, tmp_path: Path) -> None:
    """Both ways give the same slices."""
    compressed = load_trace(two_steps().write(PerfettoExporter, tmp_path / "a"))
    loose = load_trace(two_steps().write(plain, tmp_path / "b"))
    assert compressed.query(SLICES) == loose.query(SLICES)


def test_a_modules_call_says_what_went_in_and_what_came_out(load_trace: Load, tmp_path: Path) -> None:
    made = Made()
    made.span("Linear", 0, 5, module="net.a", input_bytes=512, output_bytes=0)
    made.span("Linear", 5, 5, module="net.b", input_bytes=64)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "calls.pftrace"))
    assert annotations(processor, "net.a") == {"class": "Linear", "input_bytes": 512, "output_bytes": 0}
    assert annotations(processor, "net.b") == {"class": "Linear", "input_bytes": 64}


def test_the_official_protos_read_every_packet(tmp_path: Path) -> None:
    """And find no field that they do not know."""
    content = two_steps().write(plain, tmp_path / "plain.pftrace").read_bytes()
    trace = Trace.FromString(content)
    known = Trace.FromString(content)
    known.DiscardUnknownFields()
    assert known.SerializeToString() == trace.SerializeToString()
    assert Counter(packet.track_event.type for packet in trace.packet if packet.HasField("track_event")) == {
        1: 20,
        2: 18,
        3: 5,
        4: 2,
    }


@pytest.mark.parametrize("make", [PerfettoExporter, plain])
def test_a_file_cut_anywhere_opens(
    make: Callable[..., PerfettoExporter], load_trace: Load, tmp_path: Path
) -> None:
    """What was complete before the cut is there."""
    content = two_steps().write(make, tmp_path / "whole.pftrace", size=7).read_bytes()
    slices = []
    for share in (0.2, 0.4, 0.6, 0.8, 0.95):
        (tmp_path / "cut.pftrace").write_bytes(content[: int(len(content) * share)])
        slices.append(load_trace(tmp_path / "cut.pftrace").scalar("SELECT count(*) FROM slice"))
    assert slices == sorted(slices) and 0 < slices[3] <= slices[4] <= 26


def test_an_empty_recording_is_a_valid_trace(load_trace: Load, tmp_path: Path) -> None:
    """It holds what the recording says of itself, and nothing else."""
    processor = load_trace(Made().write(PerfettoExporter, tmp_path / "empty.pftrace"))
    assert processor.import_problems() == []
    assert processor.query(SLICES) == []
    assert annotations(processor, "recording")["producer"] == "test"


def test_one_operator_without_anything_known(load_trace: Load, tmp_path: Path) -> None:
    """An unknown length is drawn as none; there is no counter, and no annotation."""
    made = Made(devices=[], producer=None)
    made.add(EventKind.OPERATOR, 5, -1)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "one.pftrace"))
    assert [(row["ts"], row["dur"], row["name"]) for row in processor.query(SLICES)] == [(5, 0, "(unknown)")]
    assert processor.query(COUNTERS) == [] and annotations(processor, "(unknown)") == {}


@pytest.mark.parametrize(
    "name", ['"quoted" \\ back', "emoji 🧠", "two\nlines\ttab", "x" * 10_000, "a.b", "..", "\ud800"]
)
def test_any_name_is_shown_as_it_is(name: str, load_trace: Load, tmp_path: Path) -> None:
    """Names of operators, modules, threads and markers; only what is no UTF-8 is escaped."""
    made = Made()
    made.operator(name, 0, 10, module=name, thread=name)
    made.marker(name, 5)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "names.pftrace"))
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert processor.import_problems() == []
    assert [row["name"] for row in processor.query(SLICES)] == [shown]
    assert shown in [row["name"] for row in processor.query(INSTANTS)]
    assert processor.scalar("SELECT string_value FROM args WHERE key = 'debug.module'") == shown


def test_threads_devices_and_steps_without_length(load_trace: Load, tmp_path: Path) -> None:
    """Two threads at one time, two devices, and operators of 0 ns stay what they are."""
    made = Made(devices=[Device("cpu"), Device("cuda", 0)])
    for moment in range(3):
        made.operator("aten.t.default", moment, 0, thread="MainThread", device=0, allocated_bytes=moment)
        made.operator("aten.t.default", moment, 0, thread="worker", device=1, allocated_bytes=10 * moment)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "two.pftrace", size=2))
    assert Counter(
        (row["track"], row["ts"], row["dur"], row["depth"]) for row in processor.query(SLICES)
    ) == {(track, moment, 0, 0): 1 for track in ("MainThread", "worker") for moment in range(3)}
    assert [(row["name"], row["highest"]) for row in processor.query(COUNTERS)] == [
        ("cpu allocated", 2.0),
        ("cuda:0 allocated", 20.0),
    ]


def test_several_ranks_have_processes_and_counters_at_the_root(load_trace: Load, tmp_path: Path) -> None:
    """`allocated` of each rank at the root, zero-padded so that the UI sorts it; the others under it."""
    made = Made(world_size=4, devices=[Device("cuda", index) for index in range(4)])
    for rank in range(4):
        made.operator("aten.mm.default", rank, 5, rank=rank, device=rank, allocated_bytes=7, active_bytes=8)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "ranks.pftrace"))
    assert processor.scalar(
        "SELECT group_concat(name) FROM (SELECT name FROM process WHERE pid > 0 ORDER BY pid)"
    ) == ("rank 0,rank 1,rank 2,rank 3")
    nested = processor.query(
        "SELECT t.name, p.name AS parent FROM counter_track JOIN track AS t USING (id) "
        "LEFT JOIN track AS p ON p.id = t.parent_id ORDER BY 1"
    )
    assert [tuple(row.values()) for row in nested] == [
        *((f"cuda:{rank} active", f"rank {rank:02} cuda:{rank} allocated") for rank in range(4)),
        *((f"rank {rank:02} cuda:{rank} allocated", None) for rank in range(4)),
    ]


def test_the_highest_ranks_have_processes_of_their_own(load_trace: Load, tmp_path: Path) -> None:
    """A trace keeps a pid in 32 bits."""
    made = Made(rank=0, pid=4_000_000)
    ranks = [0, 1, 21_423, 21_424, 21_425, 2**31 - 1]
    for rank in ranks:
        made.operator("aten.mm.default", rank, 5, rank=rank)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "ranks.pftrace"))
    rows = processor.query("SELECT name, pid FROM process WHERE pid > 0")
    assert sorted(str(row["name"]) for row in rows) == sorted(f"rank {rank}" for rank in ranks)
    assert len({row["pid"] for row in rows}) == len(ranks)


def test_without_a_clock_events_lie_side_by_side(load_trace: Load, tmp_path: Path) -> None:
    """An operator reaches nearly to the next; spans that begin with an earlier batch's operator hold it."""
    made = Made(clock="index", start_time_unix_ns=None)
    for number in range(4):
        made.operator(f"op{number}", number * INDEX_CLOCK_NS, -1)
    made.span("forward", 0, 4 * INDEX_CLOCK_NS)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "index.pftrace", size=2))
    rows = [(row["ts"], row["dur"], row["name"], row["depth"]) for row in processor.query(SLICES)]
    assert rows == [(999, 4_001, "forward", 0)] + [(1000 * n + 1000, 900, f"op{n}", 1) for n in range(4)]
    assert str(annotations(processor, "recording")["clock"]).startswith("index")


def test_numbers_that_a_double_cannot_hold_are_clipped_with_a_warning(
    load_trace: Load, tmp_path: Path
) -> None:
    """The annotation keeps the exact integer."""
    made = Made()
    made.operator("aten.empty.default", 0, 5, device=0, size_bytes=2**60 + 1, allocated_bytes=2**60 + 1)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "huge.pftrace"))
    assert processor.query(COUNTERS)[0]["highest"] == 2.0**53
    assert annotations(processor, "aten::empty")["bytes_delta"] == 2**60 + 1
    assert "2^53" in str(annotations(processor, "recording end")["warning 1"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 9),
)
def test_any_times_come_back(
    load_trace: Load, tmp_path: Path, slices: list[tuple[int, int, bool]], size: int
) -> None:
    """Each slice ends when it did, and begins when it did or, to hold an earlier one, a few ns before."""
    made = Made()
    for number, (begin, length, is_span) in enumerate(sorted(slices, key=lambda s: s[0] + s[1])):
        kind = EventKind.SPAN if is_span else EventKind.OPERATOR
        made.add(kind, 100 + begin, length, name=f"s{number}", thread="MainThread")
    made.end = RecordingEnd()
    (tmp_path / "any.pftrace").unlink(missing_ok=True)
    processor = load_trace(made.write(PerfettoExporter, tmp_path / "any.pftrace", size=size))
    found = {row["name"]: (row["ts"], row["ts"] + row["dur"]) for row in processor.query(SLICES)}
    assert processor.import_problems() == []
    for number, row in enumerate(made.rows):
        begin = row["time_unix_ns"] - START
        drawn_begin, drawn_end = found.pop(f"s{number}")
        assert drawn_end == begin + row["duration_ns"]
        assert begin - 30 <= drawn_begin <= begin
    assert not found
