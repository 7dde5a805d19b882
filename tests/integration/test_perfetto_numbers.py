"""Whatever is recorded: Perfetto's importer finds the numbers that a plain count of the events gives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_processor import TraceProcessor

import memexport
from memexport.analysis.summary import SummaryFold
from memexport.demo import SmallTransformer, training_step
from memexport.exporters import Exporter, FileDestination
from memexport.exporters.chrome import ChromeExporter
from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import (
    COLUMNS,
    INDEX_CLOCK_NS,
    NULLS,
    Category,
    Device,
    EventBatch,
    EventKind,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

Load = Callable[[Path], TraceProcessor]
Recorded = tuple[RecordingInfo, Tables, list[EventBatch]]
SMALL_PICKLE = Path(__file__).parent.parent / "data" / "legacy_conv.pickle"
START = 1_750_000_000_123_456_789
# A span that begins at the very time of one in it, written before, is drawn from a nanosecond earlier.
MOST_MOVED_NS = 8

SLICES = "SELECT ts, dur FROM slice WHERE category IS NOT NULL"
BARS = """
    SELECT slice.ts, dur FROM slice JOIN track ON track.id = track_id
    WHERE track.name GLOB 'tensor lifetimes *' OR track.name GLOB 'tensors from before *'
"""
INSTANTS = "SELECT count(*) FROM slice JOIN track ON track.id = track_id WHERE track.name = 'markers'"
COUNTERS = """
    SELECT t.name, max(value) AS highest FROM counter JOIN counter_track AS t ON t.id = track_id
    WHERE t.name GLOB '*allocated' OR t.name GLOB '*reserved' OR t.name GLOB '*bytes bytes' GROUP BY t.id
"""
ALL_COUNTERS = """
    SELECT t.name, max(value) AS highest FROM counter JOIN counter_track AS t ON t.id = track_id GROUP BY 1
"""
HEAPS = "SELECT heap_name AS name, sum(size) AS bytes FROM heap_profile_allocation GROUP BY upid, heap_name"
CATEGORIES = """
    SELECT c.ts, c.value, t.name FROM counter AS c JOIN track AS t ON t.id = c.track_id
    JOIN track AS p ON p.id = t.parent_id WHERE p.name = '{}' AND NOT t.name GLOB '* active'
    UNION ALL SELECT c.ts, c.value, '' FROM counter AS c JOIN track AS t ON t.id = c.track_id
    WHERE t.name = '{}' ORDER BY 1
"""
all_lifetimes = partial(PerfettoExporter, lifetimes_bytes=0)


class Script:
    """A recording under construction, as a program that allocates and releases would make it."""

    def __init__(self, devices: int = 1, ranks: int = 1) -> None:
        several = {"world_size": ranks} if ranks > 1 else {"rank": 0, "pid": 4000}
        self.info = RecordingInfo(
            start_time_unix_ns=START, devices=[Device("cuda", n) for n in range(devices)], **several
        )
        self.tables = Tables()
        self.rows: list[dict[str, Any]] = []
        self.allocated: Counter[tuple[int, int]] = Counter()
        self.live: list[dict[str, Any]] = []
        self.now = 10

    def add(self, kind: EventKind, **columns: Any) -> dict[str, Any]:
        """Append an event at the present time."""
        for name in ("name", "module", "thread"):
            text = columns.get(name)
            columns[name] = self.tables.strings.intern(text) if text else 0
        self.rows.append({**NULLS, "kind": kind, "time_unix_ns": START + self.now, **columns})
        return self.rows[-1]

    def allocate(self, size: int, category: Category, name: str, module: str, rank: int, device: int) -> None:
        """An allocation."""
        self.allocated[rank, device] += size
        row = self.add(
            EventKind.ALLOCATION, size_bytes=size, category=category, name=name, module=module, rank=rank,
            device=device, address=len(self.rows) + 1, allocated_bytes=self.allocated[rank, device],
        )  # fmt: skip
        self.live.append(row)

    def release(self, which: int) -> None:
        """Give back one of what is live."""
        row = self.live.pop(which % len(self.live))
        place = row["rank"], row["device"]
        self.allocated[place] -= row["size_bytes"]
        self.add(
            EventKind.RELEASE,
            **{n: row[n] for n in ("size_bytes", "category", "rank", "device", "address")},
            allocated_bytes=self.allocated[place],
        )

    def recorded(self, batch_size: int) -> Recorded:
        """The events in batches of so many."""
        parts = [self.rows[n : n + batch_size] for n in range(0, len(self.rows), batch_size)]
        batches = [EventBatch(**{name: [row[name] for row in part] for name in COLUMNS}) for part in parts]
        return self.info, self.tables, batches


def write(recorded: Recorded, make: Callable[[FileDestination], Exporter], path: Path) -> Path:
    """Export all of it, in place as a tracker does: batch by batch."""
    info, tables, batches = recorded
    exporter = make(FileDestination(path, overwrite=True, atomic=False))
    exporter.begin(info, tables)
    for batch in batches:
        exporter.write(batch)
    exporter.end(RecordingEnd())
    return path


def expected_slices(events: EventBatch, info: RecordingInfo) -> list[tuple[int, int]]:
    """End and begin of every operator and span after the trace's origin, sorted."""
    rows = events.select((events.kind == EventKind.OPERATOR) | (events.kind == EventKind.SPAN))
    unknown = 0 if info.clock == "unix" else INDEX_CLOCK_NS * 9 // 10
    origin = info.start_time_unix_ns if info.clock == "unix" else -INDEX_CLOCK_NS
    durations = np.where(rows.duration_ns < 0, unknown, rows.duration_ns)
    begins = rows.time_unix_ns - origin
    return sorted(zip((begins + durations).tolist(), begins.tolist(), strict=True))


def expected_bars(events: EventBatch, info: RecordingInfo) -> Counter[tuple[int, int | None]]:
    """Begin and end of every storage; None for one that is never released."""
    bars: list[list[int | None]] = []
    open_bars: dict[tuple[int, ...], list[int | None]] = {}
    columns = (events.kind, events.time_unix_ns, events.rank, events.device, events.address)
    for kind, time, *key in zip(*(column.tolist() for column in columns), strict=True):
        if kind in (EventKind.ALLOCATION, EventKind.RELEASE):
            moment = time - (info.start_time_unix_ns or 0)
            if tuple(key) in open_bars:
                open_bars.pop(tuple(key))[1] = moment
            if kind == EventKind.ALLOCATION:
                open_bars[tuple(key)] = [moment, None]
                bars.append(open_bars[tuple(key)])
    return Counter((bar[0] or 0, bar[1]) for bar in bars)


def expected_peaks(recorded: Recorded, names: Sequence[str]) -> dict[str, int]:
    """The highest value of each counter, as the summary has it, by the counter's name in a trace."""
    info, tables, batches = recorded
    fold = SummaryFold(info, tables)
    for batch in batches:
        fold.add(batch)
    peaks = {}
    for device, summary in fold.result(RecordingEnd()).devices.items():
        for name in names:
            counter = getattr(summary, name)
            if counter is not None:
                place = device.split(" ")
                rank = f"rank {int(place[1]):02} " if len(place) > 1 else ""
                peaks[f"{rank}{place[-1]} {name}"] = counter.peak
    return peaks


def check_numbers(processor: TraceProcessor, recorded: Recorded) -> None:
    """Every number that a trace of the recording holds is right."""
    info, _, batches = recorded
    events = EventBatch.concat(batches)
    assert processor.import_problems() == []
    found = sorted((row["ts"] + row["dur"], row["ts"]) for row in processor.query(SLICES))
    slices = expected_slices(events, info)
    assert [end for end, _ in found] == [end for end, _ in slices]
    moved = [begin - drawn for (_, begin), (_, drawn) in zip(slices, found, strict=True)]
    assert min(moved, default=0) >= 0 and max(moved, default=0) <= MOST_MOVED_NS
    bars = Counter(
        (row["ts"], row["ts"] + row["dur"] if row["dur"] >= 0 else None) for row in processor.query(BARS)
    )
    assert bars == expected_bars(events, info)
    assert processor.scalar(INSTANTS) == np.count_nonzero(events.kind == EventKind.MARKER) + 2
    peaks = expected_peaks(recorded, ("allocated", "reserved"))
    assert {row["name"]: row["highest"] for row in processor.query(COUNTERS)} == peaks
    check_heaps(processor, peaks)


def check_heaps(processor: TraceProcessor, peaks: dict[str, int]) -> None:
    """Each heap dump adds up to the highest `allocated` of a device."""
    heaps = Counter((row["name"], row["bytes"]) for row in processor.query(HEAPS))
    allowed = Counter((name.split(" ", 2)[-1] if "rank" in name else name, p) for name, p in peaks.items())
    assert heaps <= allowed


def check_categories(processor: TraceProcessor, counter: str) -> int:
    """From the first one on, the counters below `allocated` add up to it; how many there are."""
    values: dict[str, float] = {}
    rows = processor.query(CATEGORIES.format(counter, counter))
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        values[row["name"]] = row["value"]
        settled = following is None or following["ts"] != row["ts"]
        if settled and len(values) > 1:
            assert sum(values.values()) == 2 * values[""]
    return len(values) - 1


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "allocate", "release", "release", "operator", "span", "marker"]),
        st.integers(0, 40),
        st.integers(0, 5000),
        st.sampled_from([c for c in Category if c != Category.UNKNOWN]),
        st.sampled_from(["aten.mm.default", "aten.add.Tensor", ""]),
        st.sampled_from(["net.0.fc", "net", ""]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=60,
)


def scripted(operations: list[tuple[Any, ...]], devices: int, ranks: int) -> Script:
    """Play the operations."""
    script = Script(devices, ranks)
    for rank in range(ranks):
        script.allocate(1, Category.UNATTRIBUTED, "", "", rank, rank % devices)
    for what, pause, size, category, name, module, place in operations:
        script.now += pause
        rank, device = place % ranks, place % devices
        if what == "allocate":
            script.allocate(size, category, name, module, rank, device)
        elif what == "release" and script.live:
            script.release(size)
        elif what in ("operator", "span", "marker"):
            kind = EventKind[what.upper()]
            begin = {"time_unix_ns": START + max(0, script.now - size % 50)}
            begin["duration_ns"] = START + script.now - begin["time_unix_ns"]
            columns = {} if what == "marker" else begin
            script.add(kind, name=name, module=module, rank=rank, **columns)
    return script


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.integers(1, 3), st.sampled_from([1, 1, 2]), st.integers(1, 20), st.booleans())
def test_a_random_recording_keeps_its_numbers(
    load_trace: Load,
    tmp_path: Path,
    operations: list[tuple[Any, ...]],
    devices: int,
    ranks: int,
    size: int,
    compress: bool,
) -> None:
    """Slices, bars, instants, counters, categories and heaps; any batch size, one rank or two."""
    recorded = scripted(operations, devices, ranks).recorded(size)
    make = partial(all_lifetimes, compress=compress)
    processor = load_trace(write(recorded, make, tmp_path / "any.pftrace"))
    check_numbers(processor, recorded)
    for name in expected_peaks(recorded, ("allocated",)):
        check_categories(processor, name)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS, st.integers(1, 20))
def test_a_chrome_trace_has_the_same_numbers(
    load_trace: Load, tmp_path: Path, operations: list[tuple[Any, ...]], size: int
) -> None:
    """Slices and counters; the document is valid JSON and holds every event."""
    recorded = scripted(operations, 2, 1).recorded(size)
    path = write(recorded, ChromeExporter, tmp_path / "any.json")
    slices = expected_slices(EventBatch.concat(recorded[2]), recorded[0])
    kinds = Counter(event["ph"] for event in json.loads(path.read_text())["traceEvents"])
    assert kinds["X"] == len(slices)
    processor = load_trace(path)
    found = sorted(
        row["ts"] + row["dur"] for row in processor.query("SELECT ts, dur FROM slice WHERE dur >= 0")
    )
    instants = kinds["i"]
    assert processor.import_problems() == [] and len(found) == len(slices) + instants
    highest = {row["name"]: row["highest"] for row in processor.query(ALL_COUNTERS)}
    peaks = expected_peaks(recorded, ("allocated",))
    assert highest == {f"{name} bytes": peak for name, peak in peaks.items()}


def test_a_real_training_run_keeps_its_numbers(load_trace: Load, tmp_path: Path) -> None:
    """Two steps of a model with a checkpointed block, through the archive."""
    model = SmallTransformer(width=16, blocks=2)
    optimizer = torch.optim.AdamW(model.parameters())
    with memexport.Tracker(model, optimizer=optimizer, exporters=[str(tmp_path / "run.memx")]) as tracker:
        for _ in range(2):
            training_step(model, optimizer)
            tracker.step()
    recorded = opened(tmp_path / "run.memx")
    processor = load_trace(write(recorded, all_lifetimes, tmp_path / "run.pftrace"))
    check_numbers(processor, recorded)
    assert check_categories(processor, "cpu allocated") >= 2
    assert len(processor.query(HEAPS)) == 1
    recomputed = "SELECT count(*) FROM slice WHERE name = 'recompute' AND category = 'phase'"
    assert processor.scalar(recomputed) == 2


def opened(path: Path) -> Recorded:
    """What a file holds."""
    with memexport.open(path) as recording:
        batches = list(recording.batches())
        return recording.info, recording.tables, batches


def test_a_legacy_pickle_keeps_its_numbers(load_trace: Load, tmp_path: Path) -> None:
    """It knows counters and operators, but no storages: there is no flamegraph of nothing."""
    recorded = opened(SMALL_PICKLE)
    processor = load_trace(write(recorded, all_lifetimes, tmp_path / "legacy.pftrace"))
    check_numbers(processor, recorded)
    assert processor.query(HEAPS) == []


@pytest.mark.parametrize("compress", [True, False])
def test_a_recording_cut_by_a_crash_keeps_what_was_written(
    compress: bool, load_trace: Load, tmp_path: Path
) -> None:
    """Every whole batch is there; what was live then fades out."""
    script = Script()
    for number in range(200):
        script.now += 5
        script.allocate(64, Category.ACTIVATION, "aten.mm.default", "net", 0, 0)
        if number % 2:
            script.release(0)
    info, tables, batches = script.recorded(20)
    exporter = all_lifetimes(FileDestination(tmp_path / "cut.pftrace", atomic=False), compress=compress)
    exporter.begin(info, tables)
    for batch in batches[:10]:
        exporter.write(batch)
    processor = load_trace(tmp_path / "cut.pftrace")
    found = Counter((row["dur"] < 0) for row in processor.query(BARS))
    events = EventBatch.concat(batches[:10])
    allocations, releases = (
        np.count_nonzero(events.kind == kind) for kind in (EventKind.ALLOCATION, EventKind.RELEASE)
    )
    assert found == {True: allocations - releases, False: releases}
    exporter.abort()


def test_sixty_four_ranks_are_kept_apart(load_trace: Load, tmp_path: Path) -> None:
    """Each has its process, its counter and its own flamegraph."""
    script = Script(devices=2, ranks=64)
    for rank in range(64):
        script.now += 3
        script.allocate(100 + rank, Category.ACTIVATION, "aten.mm.default", "net", rank, rank % 2)
    recorded = script.recorded(50)
    processor = load_trace(write(recorded, all_lifetimes, tmp_path / "ranks.pftrace"))
    check_numbers(processor, recorded)
    assert sorted(row["bytes"] for row in processor.query(HEAPS)) == [100 + rank for rank in range(64)]
    assert processor.scalar("SELECT count(DISTINCT upid) FROM heap_profile_allocation") == 64


def test_ten_thousand_modules_are_ten_thousand_stacks(load_trace: Load, tmp_path: Path) -> None:
    """Numbers stay with what they count, so that a list of layers is one level of frames."""
    script = Script()
    for number in range(10_000):
        script.now += 1
        script.allocate(8, Category.ACTIVATION, "aten.mm.default", f"net.layers.{number}.fc", 0, 0)
    recorded = script.recorded(4_000)
    processor = load_trace(write(recorded, all_lifetimes, tmp_path / "modules.pftrace"))
    check_numbers(processor, recorded)
    assert processor.scalar("SELECT count(*) FROM heap_profile_allocation") == 10_000
    frames = "SELECT count(*) FROM stack_profile_frame WHERE name GLOB 'layers.*'"
    assert processor.scalar(frames) == 10_000


def test_bytes_that_a_double_cannot_hold_are_exact_in_the_flamegraph(
    load_trace: Load, tmp_path: Path
) -> None:
    """Counters are clipped at 2^53, which the recording's end says."""
    script = Script()
    script.allocate(2**60 + 1, Category.PARAMETER, "", "net", 0, 0)
    processor = load_trace(write(script.recorded(5), all_lifetimes, tmp_path / "huge.pftrace"))
    assert processor.scalar("SELECT sum(size) FROM heap_profile_allocation") == 2**60 + 1
    assert processor.query(COUNTERS) == [{"name": "cuda:0 allocated", "highest": 2.0**53}]
    assert processor.scalar("SELECT int_value FROM args WHERE key = 'debug.bytes'") == 2**60 + 1
