"""Tensor lifetimes, categories and flamegraphs, as Perfetto's importer finds them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from made_recordings import Made
from trace_processor import TraceProcessor

from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import Category, Device, EventKind

Load = Callable[[Path], TraceProcessor]

BARS = """
    SELECT slice.name, slice.ts, dur, track.name AS chart, track.id AS lane FROM slice
    JOIN track ON track.id = track_id WHERE chart GLOB '*tensor*' ORDER BY slice.ts, slice.id
"""
FRAMES = """
    SELECT f.name, m.name AS mapping, depth, size, count FROM heap_profile_allocation
    JOIN stack_profile_callsite AS c ON c.id = callsite_id
    JOIN stack_profile_frame AS f ON f.id = frame_id JOIN stack_profile_mapping AS m ON m.id = f.mapping
    ORDER BY size DESC
"""
CATEGORIES = """
    SELECT t.name, group_concat(CAST(value AS INT)) AS bytes FROM counter JOIN track AS t
    ON t.id = track_id JOIN track AS p ON p.id = t.parent_id WHERE p.name = 'cuda:0 allocated'
    GROUP BY t.id ORDER BY t.id
"""
everything = partial(PerfettoExporter, lifetimes_bytes=0)


def training() -> Made:
    """A parameter from before, an activation that is released, a gradient that stays."""
    made = Made(rank=0, pid=4000)
    memory = partial(made.add, device=0, rank=0)
    common: dict[str, Any] = {"size_bytes": 100, "module": "net.0.fc"}
    memory(EventKind.ALLOCATION, 0, category=Category.PARAMETER, address=1, allocated_bytes=100, **common)
    common |= {"name": "aten.mm.default"}
    memory(
        EventKind.ALLOCATION, 10, category=Category.ACTIVATION, address=2, allocated_bytes=200,
        active_bytes=200, **common,
    )  # fmt: skip
    memory(EventKind.SAMPLE, 15, allocated_bytes=230, active_bytes=240)
    memory(
        EventKind.RELEASE, 20, category=Category.ACTIVATION, address=2, size_bytes=100, allocated_bytes=130
    )
    common |= {"size_bytes": 50}
    memory(EventKind.ALLOCATION, 20, category=Category.GRADIENT, address=3, allocated_bytes=150, **common)
    return made


@pytest.fixture
def processor(load_trace: Load, tmp_path: Path) -> TraceProcessor:
    """All lifetimes of `training`."""
    return load_trace(training().write(everything, tmp_path / "memory.pftrace", size=2))


def test_a_bar_lasts_from_allocation_to_release(processor: TraceProcessor) -> None:
    """What is never released has no end; a lane is used again at the moment at which it is free."""
    rows = processor.query(BARS)
    assert [(row["name"], row["ts"], row["dur"], row["chart"]) for row in rows] == [
        ("parameter", 0, -1, "tensors from before cuda:0"),
        ("aten::mm", 10, 10, "tensor lifetimes cuda:0, 5: < 256 KiB"),
        ("aten::mm", 20, -1, "tensor lifetimes cuda:0, 5: < 256 KiB"),
    ]
    assert rows[1]["lane"] == rows[2]["lane"]


def test_a_bar_says_what_the_storage_is(processor: TraceProcessor) -> None:
    """Bytes, module and category; the chart's name has the device."""
    found = processor.query(
        "SELECT substr(key, 7) AS key, coalesce(string_value, int_value) AS value FROM slice "
        "JOIN args USING (arg_set_id) WHERE slice.name = 'aten::mm' AND slice.ts = 10"
    )
    assert {row["key"]: row["value"] for row in found} == {
        "bytes": 100, "module": "net.0.fc", "category": "activation"
    }  # fmt: skip


def test_small_storages_are_left_out_and_counted(load_trace: Load, tmp_path: Path) -> None:
    """The recording's end says how many, and from which size on."""
    make = partial(PerfettoExporter, lifetimes_bytes=100)
    processor = load_trace(training().write(make, tmp_path / "large.pftrace"))
    assert [row["ts"] for row in processor.query(BARS)] == [0, 10]
    said = processor.scalar("SELECT string_value FROM args WHERE key = 'debug.tensor lifetimes'")
    assert said == "2 of 3 tensor lifetimes are drawn; in the end those of at least 100 bytes"


def test_categories_add_up_to_allocated(processor: TraceProcessor) -> None:
    """They are its children, each written where it changes; the rest is unattributed."""
    assert processor.query(CATEGORIES) == [
        {"name": "parameter", "bytes": "100"},
        {"name": "unattributed", "bytes": "0,30,0"},
        {"name": "activation", "bytes": "100,0"},
        {"name": "gradient", "bytes": "50"},
    ]


def test_without_categories_there_are_no_counters_of_them(load_trace: Load, tmp_path: Path) -> None:
    """UNATTRIBUTED alone would only repeat `allocated`."""
    made = Made()
    made.add(EventKind.ALLOCATION, 1, size_bytes=5, address=1, device=0, category=9, allocated_bytes=5)
    processor = load_trace(made.write(everything, tmp_path / "plain.pftrace"))
    assert processor.scalar("SELECT count(*) FROM counter_track") == 1


def test_active_is_drawn_from_where_it_differs(processor: TraceProcessor) -> None:
    """Up to there it is what `allocated` is."""
    sql = "SELECT ts, value FROM counter JOIN track ON track.id = track_id WHERE name = 'cuda:0 active'"
    assert processor.query(sql) == [{"ts": 15, "value": 240.0}]


def test_the_flamegraph_is_of_the_peak(processor: TraceProcessor) -> None:
    """Category, module path, operator; the category as mapping too; how many there are beside the bytes."""
    rows = [tuple(row.values()) for row in processor.query(FRAMES)]
    assert sorted(rows) == [
        ("(unattributed)", "/unattributed", 0, 30, 1),
        ("aten::mm", "/activation", 3, 100, 1),
        ("fc", "/parameter", 2, 100, 1),
    ]
    assert processor.scalar("SELECT DISTINCT ts FROM heap_profile_allocation") == 15


def test_two_devices_of_a_process_are_not_added_up(load_trace: Load, tmp_path: Path) -> None:
    """The UI sums the dumps of one process, so that the smaller device gets one of its own."""
    made = Made(rank=0, pid=4000, devices=[Device("cpu"), Device("cuda", 0)])
    for device, size in ((0, 5), (1, 70)):
        made.add(
            EventKind.ALLOCATION, device, size_bytes=size, address=1, device=device, rank=0,
            category=Category.INPUT, allocated_bytes=size,
        )  # fmt: skip
    processor = load_trace(made.write(everything, tmp_path / "two.pftrace"))
    heaps = processor.query(
        "SELECT process.name, heap_name AS heap, size FROM heap_profile_allocation JOIN process USING (upid) "
        "ORDER BY size DESC"
    )
    assert [tuple(row.values()) for row in heaps] == [
        ("rank 0", "cuda:0 allocated", 70),
        ("rank 0: cpu at its peak", "cpu allocated", 5),
    ]


def test_an_address_allocated_anew_ends_the_bar_whose_release_was_lost(
    load_trace: Load, tmp_path: Path
) -> None:
    """Two bars side by side in time, also when both begin in one batch."""
    made = Made()
    for moment in (1, 5):
        made.add(EventKind.ALLOCATION, moment, size_bytes=5, address=1, device=0, name="aten.t.default")
    made.add(EventKind.RELEASE, 5, size_bytes=5, address=1, device=0)
    processor = load_trace(made.write(everything, tmp_path / "lost.pftrace"))
    assert [(row["ts"], row["dur"]) for row in processor.query(BARS)] == [(1, 4), (5, 0)]


def test_the_largest_storages_are_on_a_chart_above(load_trace: Load, tmp_path: Path) -> None:
    """The UI orders charts by name, and lays out the bars of each by time."""
    made = Made()
    sizes = (2**20, 2**18, 2**18 - 1, 2**30, 2**26 + 1, 0)
    for number, size in enumerate(sizes, 1):
        made.add(
            EventKind.ALLOCATION, number, size_bytes=size, address=number, device=0, name="aten.t.default"
        )
    processor = load_trace(made.write(everything, tmp_path / "sizes.pftrace"))
    charts = {row["ts"]: row["chart"].partition(", ")[2] for row in processor.query(BARS)}
    assert [charts[number] for number in range(1, 7)] == [
        "4: ≥ 256 KiB", "4: ≥ 256 KiB", "5: < 256 KiB", "1: ≥ 1 GiB", "2: ≥ 64 MiB", "5: < 256 KiB",
    ]  # fmt: skip


def test_a_storage_without_an_operator_is_named_by_its_code(load_trace: Load, tmp_path: Path) -> None:
    """As in torch's own snapshots; one from before the recording's start has a chart of its own."""
    made = Made(devices=[Device("cuda", 0)])
    frames = [
        made.tables.strings.intern(text) for text in ("/src/train.py:10:main", "/src/model.py:7:forward")
    ]
    stack = made.tables.stacks.intern(frames)
    common: dict[str, Any] = {"size_bytes": 8, "device": 0, "stack": stack}
    made.add(EventKind.ALLOCATION, 0, address=1, **common)
    made.marker("start", 0)
    made.add(EventKind.ALLOCATION, 1, address=2, allocated_bytes=16, **common)
    processor = load_trace(made.write(everything, tmp_path / "code.pftrace"))
    assert [(row["name"], row["ts"], row["chart"][:19]) for row in processor.query(BARS)] == [
        ("model.py:7 forward", 0, "tensors from before"),
        ("model.py:7 forward", 1, "tensor lifetimes cu"),
    ]
    symbols = processor.query("SELECT name, source_file, line_number FROM stack_profile_symbol ORDER BY id")
    assert [tuple(row.values()) for row in symbols] == [
        ("main (train.py:10)", "/src/train.py", 10),
        ("forward (model.py:7)", "/src/model.py", 7),
    ]


def test_each_step_has_a_flamegraph_on_request(load_trace: Load, tmp_path: Path) -> None:
    """A dump holds what changed since the one before, so sums up to a step's peak are what lived then."""
    made = Made(rank=0, pid=4000)
    common: dict[str, Any] = {"device": 0, "rank": 0, "name": "aten.mm.default", "category": 4}
    peaks = []
    for step, held in enumerate((3, 5, 5, 2)):
        for number in range(1, held + 1):
            made.add(
                EventKind.ALLOCATION, 100 * step + number, step=step, address=number, size_bytes=10,
                allocated_bytes=10 * number, **common,
            )  # fmt: skip
        peaks.append((100 * step + held, 10 * held))
        for number in range(1, held + 1):
            made.add(
                EventKind.RELEASE, 100 * step + 50 + number, step=step, address=number, size_bytes=10,
                allocated_bytes=10 * (held - number), **common,
            )  # fmt: skip
    make = partial(PerfettoExporter, step_peaks=True)
    processor = load_trace(made.write(make, tmp_path / "steps.pftrace", size=4))
    found = processor.query(
        "SELECT ts, sum(sum(size)) OVER (ORDER BY ts) AS bytes FROM heap_profile_allocation GROUP BY ts"
    )
    assert [tuple(row.values()) for row in found] == peaks
    assert processor.query("SELECT name FROM stats WHERE severity != 'info' AND value > 0") == []


def test_the_peak_outside_of_steps_is_dumped_too(load_trace: Load, tmp_path: Path) -> None:
    """It may be the recording's own; what lies lower there is left out."""
    made = Made()
    common: dict[str, Any] = {"device": 0, "name": "aten.mm.default", "category": 4}
    for moment, (step, allocated) in enumerate([(-1, 5), (0, 30), (-1, 20), (1, 25), (-1, 90), (-1, 40)]):
        made.add(
            EventKind.ALLOCATION, moment, step=step, address=moment + 1, size_bytes=5,
            allocated_bytes=allocated, **common,
        )  # fmt: skip
    make = partial(PerfettoExporter, step_peaks=True)
    processor = load_trace(made.write(make, tmp_path / "outside.pftrace"))
    found = processor.query("SELECT DISTINCT ts FROM heap_profile_allocation ORDER BY ts")
    assert [row["ts"] for row in found] == [0, 1, 3, 4]


def test_a_failed_request_says_how_much_was_asked_for_and_where(load_trace: Load, tmp_path: Path) -> None:
    """A marker is an instant; one of nothing but a name has no annotations."""
    made = Made()
    stack = made.tables.stacks.intern([made.tables.strings.intern("/src/train.py:10:main")])
    made.marker("oom", 5, device=0, size_bytes=2**33, stack=stack)
    made.marker("checkpoint", 7)
    made.marker(
        "traced",
        8,
        inputs=made.tables.strings.intern("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    )
    processor = load_trace(made.write(everything, tmp_path / "oom.pftrace"))
    found = processor.query(
        "SELECT name, extract_arg(arg_set_id, 'debug.bytes') AS bytes, "
        "extract_arg(arg_set_id, 'debug.source') AS source, "
        "extract_arg(arg_set_id, 'debug.traceparent') AS traceparent FROM slice "
        "WHERE ts IN (5, 7, 8) AND name IN ('oom', 'checkpoint', 'traced') ORDER BY ts"
    )
    assert [tuple(row.values()) for row in found] == [
        ("oom", 2**33, "/src/train.py:10:main", None),
        ("checkpoint", None, None, None),
        ("traced", None, None, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ]
