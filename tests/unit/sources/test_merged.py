"""The ranks of a run as one recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memexport
from memexport import pipeline
from memexport.exporters import FileDestination
from memexport.exporters.archive import ArchiveExporter
from memexport.model import Device, EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

START = 1_750_000_000_000_000_000


def recorded(
    path: Path,
    rank: int | None,
    moments: list[int],
    *,
    world_size: int | None = 2,
    step_ends: list[int] | None = None,
    stack: str | None = None,
) -> Path:
    """An archive with an ALLOCATION at each of these nanoseconds after the start, then steps."""
    tables = Tables()
    # Every rank numbers its strings in an order of its own.
    for padding in range(rank or 0):
        tables.strings.intern(f"rank {rank} only {padding}")
    frames = [tables.strings.intern(stack)] if stack else []
    info = RecordingInfo(
        producer="test",
        rank=rank,
        world_size=world_size,
        start_time_unix_ns=START + (rank or 0),
        devices=[Device("cuda", rank, uuid=f"GPU-{rank}")],
    )
    common: dict[str, Any] = {"device": 0, "rank": -1 if rank is None else rank}
    exporter = ArchiveExporter(FileDestination(path))
    exporter.begin(info, tables)
    name = tables.strings.intern("aten.mm.default")
    module = tables.strings.intern(f"layers.{rank}")
    count = len(moments)
    batch = EventBatch(
        kind=np.full(count, EventKind.ALLOCATION),
        time_unix_ns=np.array(moments, np.int64) + START,
        duration_ns=0,
        name=name,
        module=module,
        stack=tables.stacks.intern(frames),
        size_bytes=10,
        address=np.arange(1, count + 1),
        allocated_bytes=10 * np.arange(1, count + 1),
        **common,
    )
    for first in range(0, count, 3):
        exporter.write(batch.select(slice(first, first + 3)))
    ends = step_ends or []
    exporter.write(
        EventBatch(
            kind=np.full(len(ends), EventKind.SPAN),
            time_unix_ns=START + np.array(ends, np.int64) - 1,
            duration_ns=1,
            name=tables.strings.intern("step"),
            step=np.arange(len(ends)),
            rank=common["rank"],
        )
    )
    exporter.end(RecordingEnd(warnings=("too warm",) if rank == 1 else ()))
    return path


def told(recording: memexport.Recording) -> list[tuple[int, int, str | None, str]]:
    """When, of which rank, in which module and on which device each event was."""
    batch = EventBatch.concat(list(recording.batches()))
    strings, devices = recording.tables.strings, recording.info.devices
    return [
        (time - START, rank, strings.get(module), str(devices[device]) if device >= 0 else "")
        for time, rank, module, device in zip(
            batch.time_unix_ns.tolist(),
            batch.rank.tolist(),
            batch.module.tolist(),
            batch.device.tolist(),
            strict=True,
        )
    ]


def test_events_of_all_ranks_come_in_the_order_of_time(tmp_path: Path) -> None:
    """Each with its rank, its names and its device, though the files number them differently."""
    paths = [
        recorded(tmp_path / "b.memx", 1, [2, 5, 6, 7, 30]),
        recorded(tmp_path / "a.memx", 0, [1, 5, 9, 11]),
    ]
    with pipeline.merge(paths) as merged:
        expected = [(1, 0), (2, 1), (5, 1), (5, 0), (6, 1), (7, 1), (9, 0), (11, 0), (30, 1)]
        assert [row[:2] for row in told(merged)] == expected
        assert {row[1:] for row in told(merged)} == {(0, "layers.0", "cuda:0"), (1, "layers.1", "cuda:1")}
        assert (merged.info.world_size, merged.info.rank, merged.info.start_time_unix_ns) == (2, None, START)
        assert merged.end().warnings == (f"rank 1 ({tmp_path / 'b.memx'}): too warm",)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), max_size=20), min_size=1, max_size=5))
def test_nothing_is_lost_and_each_rank_keeps_its_order(
    tmp_path_factory: pytest.TempPathFactory, ranks: list[list[int]]
) -> None:
    """Whatever the times and the batches."""
    folder = tmp_path_factory.mktemp("ranks")
    paths = [
        recorded(folder / f"{rank}.memx", rank, sorted(moments), world_size=len(ranks))
        for rank, moments in enumerate(ranks)
    ]
    with pipeline.merge(paths) as merged:
        rows = told(merged)
        assert [row[0] for row in rows] == sorted(moment for moments in ranks for moment in moments)
        for rank, moments in enumerate(ranks):
            assert [row[0] for row in rows if row[1] == rank] == sorted(moments)


def test_stacks_are_those_of_their_rank(tmp_path: Path) -> None:
    """Frames are strings of the merged table."""
    paths = [recorded(tmp_path / f"{rank}.memx", rank, [1], stack=f"train.py:{rank}:main") for rank in (0, 1)]
    with pipeline.merge(paths) as merged:
        batch = EventBatch.concat(list(merged.batches()))
        frames = [merged.tables.stacks.frames(stack) for stack in batch.stack.tolist()]
        assert [merged.tables.strings[frame] for (frame,) in frames] == ["train.py:0:main", "train.py:1:main"]


def test_what_is_missing_cut_or_no_recording_is_named_and_not_fatal(tmp_path: Path) -> None:
    """The rest is there."""
    whole = recorded(tmp_path / "0.memx", 0, [1, 2, 3], world_size=4)
    cut = recorded(tmp_path / "1.memx", 1, list(range(30)), world_size=4)
    cut.write_bytes(cut.read_bytes()[:-400])
    other = tmp_path / "2.memx"
    other.write_bytes(b"nothing of the kind")
    with pipeline.merge([whole, cut, other]) as merged:
        assert len(told(merged)) > 3
        said = "\n".join(merged.end().warnings)
    assert "2.memx: not a recording" in said
    assert "rank 1 (" in said
    assert "2 of 4 ranks are missing: 2, 3" in said


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    """The first reason is given."""
    with pytest.raises(memexport.InputError, match="No such file"):
        pipeline.merge([tmp_path / "no.memx", tmp_path / "neither.memx"])
    with pytest.raises(memexport.UsageError):
        pipeline.merge([])


def test_clocks_that_differ_are_told(tmp_path: Path) -> None:
    """By the ends of the steps, at which ranks wait for one another."""
    ends = [10**9, 2 * 10**9, 3 * 10**9]
    late = [end + 25_000_000 for end in ends]
    paths = [
        recorded(tmp_path / "0.memx", 0, [1], step_ends=ends),
        recorded(tmp_path / "1.memx", 1, [1], step_ends=late),
    ]
    with pipeline.merge(paths) as merged:
        told(merged)
        assert (
            "rank 1: steps end 25.0 ms after those of rank 0: their clocks may differ"
            in merged.end().warnings
        )


def test_recordings_that_name_no_rank_are_numbered_in_their_order(tmp_path: Path) -> None:
    """Two of the same rank would be added up."""
    paths = [recorded(tmp_path / f"{place}.memx", None, [place], world_size=None) for place in (0, 1, 2)]
    with pipeline.merge(paths) as merged:
        assert [row[1] for row in told(merged)] == [0, 1, 2]
        assert merged.info.world_size == 3


def test_a_merged_trace_has_a_counter_for_each_rank(
    tmp_path: Path, load_trace: Callable[[Path], Any]
) -> None:
    """As from one recording of several ranks; a summary names them too."""
    paths = [recorded(tmp_path / f"{rank}.memx", rank, [1, 2, 3]) for rank in (0, 1)]
    with pipeline.merge(paths) as merged:
        memexport.convert(merged, tmp_path / "all.pftrace")
        assert set(merged.summary().devices) == {"rank 0 cuda:0", "rank 1 cuda:1"}
    tracks = load_trace(tmp_path / "all.pftrace").query(
        "SELECT name FROM track WHERE name GLOB 'rank*allocated' ORDER BY name"
    )
    assert [row["name"] for row in tracks] == ["rank 00 cuda:0 allocated", "rank 01 cuda:1 allocated"]
