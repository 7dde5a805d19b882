"""What goes into an archive comes out of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from archive_files import (
    assert_equal,
    read_archive,
    record_ranges,
    records_of,
    small_recording,
    write_archive,
)

from memexport.errors import OutputError
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.model import COLUMNS, Device, EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources.archive import ArchiveSource

INFO = RecordingInfo(
    format="torch.memory_tracker",
    producer="torch",
    producer_version="2.13.0",
    clock="index",
    start_time_unix_ns=-5,
    host="höst",
    pid=2**40,
    rank=0,
    local_rank=3,
    world_size=2**33,
    devices=[Device("cpu"), Device("cuda", 0, "H200", "GPU-0", 2**45)],
    torch_version="2.13",
    python_version="3.11",
    command_line=("train.py", "--name", "", "π"),
    options={"flush_interval": "1.0", "": "empty"},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording.memx"


def events(count: int, first: int = 0) -> EventBatch:
    """Operators with random times."""
    random = np.random.default_rng(first)
    return EventBatch(
        kind=np.ones(count, np.uint8),
        time_unix_ns=np.cumsum(random.integers(0, 10_000, count)) + first * 10_000,
        duration_ns=random.integers(0, 5_000, count),
        size_bytes=random.integers(-(2**40), 2**40, count),
    )


def test_a_recording_without_events_keeps_its_info(path: Path) -> None:
    source, batches, end = read_archive(write_archive(path, info=INFO))
    assert batches == []
    assert end == RecordingEnd()
    assert source.info.devices == INFO.devices


def test_an_empty_batch_is_no_event(path: Path) -> None:
    _, batches, end = read_archive(write_archive(path, [events(0), events(2), events(0)]))
    assert [len(batch) for batch in batches] == [2]
    assert end.warnings == ()


def test_every_field_of_the_info_is_kept_and_the_format_is_the_archives(path: Path) -> None:
    source, _, _ = read_archive(write_archive(path, info=INFO))
    expected = {**vars(INFO), "format": "memexport.archive", "origin": INFO.format}
    assert {**vars(source.info), "unknown_fields": b""} == expected


def test_what_is_unknown_of_a_recording_stays_unknown(path: Path) -> None:
    source, _, end = read_archive(write_archive(path))
    assert source.info == RecordingInfo()
    assert end == RecordingEnd()


def test_the_format_that_a_recording_came_from_survives_copies(path: Path, tmp_path: Path) -> None:
    source, _, _ = read_archive(write_archive(path, info=INFO))
    copy = write_archive(tmp_path / "copy.memx", info=source.info)
    assert records_of(copy)[0].header.origin_format == "torch.memory_tracker"
    assert read_archive(copy)[0].info == source.info


@pytest.mark.parametrize(
    "end",
    [RecordingEnd(("a", "b"), 2**40, 0, 0), RecordingEnd(alloc_retries=3), RecordingEnd(ooms=9)],
    ids=str,
)
def test_the_end_is_kept(path: Path, end: RecordingEnd) -> None:
    source = ArchiveSource(write_archive(path, [events(3)], end=end))
    list(source.batches())
    assert source.end() == end


def test_batches_of_one_event_are_kept(path: Path) -> None:
    written = [events(1, first=number) for number in range(50)]
    _, read, _ = read_archive(write_archive(path, written))
    assert_equal(read, written)


def test_a_batch_of_a_million_events_is_split(path: Path) -> None:
    _, read, end = read_archive(write_archive(path, [events(1_000_000)]))
    assert max(map(len, read)) <= 65_536
    assert_equal(read, [events(1_000_000)])
    assert end.warnings == ()


def test_a_constant_column_costs_a_few_bytes_and_takes_no_memory(path: Path) -> None:
    batch = EventBatch(
        kind=np.full(10_000, 4), time_unix_ns=7, rank=3, address=2**64 - 1, step=np.full(10_000, 5)
    )
    _, (read,), _ = read_archive(write_archive(path, [batch]))
    assert path.stat().st_size < 400
    assert {column.strides for column in read.columns().values()} == {(0,)}
    assert_equal([read], [batch])


def test_columns_are_read_only(path: Path) -> None:
    _, (read,), _ = read_archive(write_archive(path, [events(10)]))
    assert not any(getattr(read, name).flags.writeable for name in COLUMNS)


def test_passes_share_tables_and_may_be_interleaved(path: Path) -> None:
    small = small_recording(path)
    source = ArchiveSource(path)
    pairs = list(zip(source.batches(), source.batches(), strict=True))
    assert_equal([first for first, _ in pairs], small.batches)
    assert_equal([second for _, second in pairs], small.batches)
    assert list(source.tables.strings) == list(small.tables.strings)
    assert source.tables.stacks.frames(1) == small.tables.stacks.frames(1)
    assert source.info.devices == small.info.devices


def test_tables_hold_each_id_as_soon_as_a_batch_refers_to_it(path: Path) -> None:
    small_recording(path)
    source = ArchiveSource(path)
    for number, batch in enumerate(source.batches()):
        assert source.tables.strings[int(batch.name[0])] == f"aten.op{number}.default"
        assert len(source.info.devices) > batch.device.max()


def test_devices_known_at_the_start_are_known_when_the_file_is_opened(path: Path) -> None:
    small_recording(path)
    assert ArchiveSource(path).info.devices == [Device("cpu")]


def test_strings_of_any_kind_keep_their_ids(path: Path) -> None:
    tables = Tables()
    strings = ["", "\0", "é\n", "𝄞", "x" * 3_000_000, "after"]
    ids = [tables.strings.intern(string) for string in strings]
    for number in range(70_000):
        tables.strings.intern(f"s{number}")
    source, _, _ = read_archive(write_archive(path, tables=tables))
    assert [source.tables.strings[i] for i in ids] == strings
    assert list(source.tables.strings) == list(tables.strings)
    assert source.tables.strings.find("after") == tables.strings.find("after")


def test_a_lone_surrogate_is_written_as_an_escape(path: Path) -> None:
    tables = Tables()
    tables.strings.intern("caf\udce9.py")
    source, _, _ = read_archive(write_archive(path, tables=tables))
    assert list(source.tables.strings) == ["", "caf\\udce9.py"]


def test_a_deep_stack_is_kept(path: Path) -> None:
    tables = Tables()
    frames = [tables.strings.intern(f"f{number}") for number in range(300)]
    stack = tables.stacks.intern(frames)
    source, _, _ = read_archive(write_archive(path, tables=tables))
    assert source.tables.stacks.frames(stack) == frames
    assert source.tables.stacks.intern(frames) == stack


def test_the_fraction_read_goes_from_nothing_to_everything(path: Path) -> None:
    source = ArchiveSource(write_archive(path, [events(1000, n) for n in range(5)]))
    batches = source.batches()
    assert source.fraction_read == 0
    fractions = [source.fraction_read for _ in batches]
    assert fractions == sorted(set(fractions))
    assert source.fraction_read == 1


def test_the_index_says_where_each_batch_lies(path: Path) -> None:
    small = small_recording(path)
    records, ranges = records_of(path), record_ranges(path)
    index = records[-2].index
    starts = [start for (start, _), r in zip(ranges, records, strict=True) if r.HasField("batch")]
    assert [entry.offset for entry in index.batches] == starts
    assert [entry.event_count for entry in index.batches] == [4, 4, 4]
    times = small.batches[0].time_unix_ns
    assert index.batches[0].first_time_unix_ns == times[2]
    assert index.batches[0].last_time_unix_ns == times[3]
    footer = records[-1].footer
    assert footer.index_offset == ranges[-2][0]
    assert (footer.event_count, footer.string_count) == (12, len(small.tables.strings))
    assert (footer.stack_count, footer.device_count) == (2, 2)


def test_the_same_recording_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = small_recording(tmp_path / "1.memx"), small_recording(tmp_path / "2.memx")
    assert one.data == two.data


def test_every_batch_survives_the_death_of_the_process(path: Path) -> None:
    killed = f"""
import os, signal
from pathlib import Path
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.model import EventBatch, RecordingInfo, Tables
exporter = ArchiveExporter(FileDestination(Path({os.fspath(path)!r}), atomic=False))
exporter.begin(RecordingInfo(), Tables())
for number in range(10):
    exporter.write(EventBatch(kind=[1, 1], time_unix_ns=number))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -signal.SIGKILL
    _, read, end = read_archive(path)
    assert [int(batch.time_unix_ns[0]) for batch in read] == list(range(10))
    assert end.warnings == ("the recording has no end: it was cut short, or is still being written",)


def test_a_recording_is_readable_while_it_is_written(path: Path) -> None:
    exporter = ArchiveExporter(FileDestination(path, atomic=False))
    exporter.begin(RecordingInfo(), Tables())
    exporter.write(events(5))
    source = ArchiveSource(path)
    assert sum(map(len, source.batches())) == 5
    exporter.write(events(6))
    assert sum(map(len, source.batches())) == 11
    exporter.abort()


def test_aborting_leaves_what_was_there_before(path: Path) -> None:
    path.write_text("before")
    exporter = ArchiveExporter(FileDestination(path, overwrite=True))
    exporter.abort()
    exporter.begin(RecordingInfo(), Tables())
    exporter.write(events(5))
    exporter.abort()
    exporter.abort()
    assert path.read_text() == "before"


def test_an_existing_file_is_not_replaced_unasked(path: Path) -> None:
    path.write_text("before")
    with pytest.raises(OutputError, match="exists already"):
        ArchiveExporter(FileDestination(path)).begin(RecordingInfo(), Tables())
