"""Parquet: the rows of JSONL as columns, the same in Arrow, pandas and Polars."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_recordings import START, Made, two_steps
from peak_memory import PEAK_BYTES

import memexport
from memexport.errors import OutputError, UsageError
from memexport.exporters import FileDestination, _arrow
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.jsonl import JsonlExporter
from memexport.exporters.parquet import ParquetExporter, partition
from memexport.model import Category, Device, EventBatch, EventKind

Partitioned = functools.partial(ParquetExporter, partitioned=True)
TEXTS_ON_REQUEST = ["inputs", "traceparent", "stack"]
ONLY_SOMETIMES = [*TEXTS_ON_REQUEST, "input_bytes", "output_bytes"]


def jsonl_rows(made: Made, folder: Path) -> list[dict[str, Any]]:
    """What the JSONL exporter says of the same recording."""
    path = made.write(JsonlExporter, folder / "expected.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def detailed() -> Made:
    """Stacks, an operator's inputs, and a marker of a traced moment."""
    made = Made(options={"record_stacks": "true", "record_shapes": "true"})
    strings, stacks = made.tables.strings, made.tables.stacks
    stack = stacks.intern([strings.intern("train.py:1:main"), strings.intern("model.py:2:forward")])
    made.operator("aten.mm.default", 0, 5, inputs=strings.intern("float32[8, 4]"), stack=stack)
    made.marker("step", 7, inputs=strings.intern("00-trace-01"))
    return made


def test_every_row_is_that_of_jsonl(tmp_path: Path) -> None:
    made = two_steps()
    table = pq.read_table(made.write(ParquetExporter, tmp_path / "two.parquet", size=7))
    expected = jsonl_rows(made, tmp_path)
    assert table.column_names == [*expected[0], *ONLY_SOMETIMES]
    assert table.drop(ONLY_SOMETIMES).to_pylist() == expected


def test_the_types_are_those_of_the_model_and_texts_are_dictionaries(tmp_path: Path) -> None:
    """Also of a recording that has none of them, so that files of one dataset agree."""
    for made in (two_steps(), Made()):
        types = {
            field.name: str(field.type)
            for field in pq.read_schema(made.write(ParquetExporter, tmp_path / f"{len(made.rows)}.parquet"))
        }
        text = "dictionary<values=string, indices=int32, ordered=0>"
        assert types == {
            **dict.fromkeys(("kind", "name", "module", "phase", "category", "device", "thread"), text),
            **dict.fromkeys(("step", "rank"), "int32"),
            **dict.fromkeys(("time_unix_ns", "duration_ns", "size_bytes"), "int64"),
            **dict.fromkeys(("allocated_bytes", "active_bytes", "reserved_bytes"), "int64"),
            "address": "uint64",
            **dict.fromkeys(TEXTS_ON_REQUEST, text),
            **dict.fromkeys(("input_bytes", "output_bytes"), "int64"),
        }


def test_inputs_traces_and_stacks_have_columns_of_their_own(tmp_path: Path) -> None:
    operator, marker = pq.read_table(detailed().write(ParquetExporter, tmp_path / "x.parquet")).to_pylist()
    assert operator["stack"] == "model.py:2:forward\ntrain.py:1:main"
    assert (operator["inputs"], operator["traceparent"]) == ("float32[8, 4]", None)
    assert (marker["inputs"], marker["traceparent"], marker["stack"]) == (None, "00-trace-01", None)


def test_what_goes_into_a_call_and_comes_out_has_columns(tmp_path: Path) -> None:
    made = Made()
    made.span("Linear", 0, 5, module="layer", input_bytes=512, output_bytes=0)
    made.span("step", 0, 5)
    call, step = pq.read_table(made.write(ParquetExporter, tmp_path / "x.parquet")).to_pylist()
    assert (call["input_bytes"], call["output_bytes"]) == (512, 0)
    assert (step["input_bytes"], step["output_bytes"]) == (None, None)


def test_extreme_values_and_names_come_back(tmp_path: Path) -> None:
    made, name = Made(), 'a "b"\n\x1b 🧠'
    values = {"size_bytes": -1, "address": 2**64 - 1, "category": Category.UNSHARDED_GRADIENT, "device": 0}
    made.operator(name, 0, 0, **values, module="half \ud800")
    (row,) = pq.read_table(made.write(ParquetExporter, tmp_path / "x.parquet")).to_pylist()
    expected = {"name": name, **values, "category": "unsharded_gradient", "device": "cuda:0"}
    assert {key: row[key] for key in expected} == expected
    assert row["module"] == "half \\ud800"
    assert row["duration_ns"] == 0


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    made = Made()
    made.add(EventKind.SAMPLE, 0)
    (row,) = pq.read_table(made.write(ParquetExporter, tmp_path / "x.parquet")).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "kind": "sample",
        "time_unix_ns": START,
    }


def test_what_is_true_for_the_whole_is_in_the_metadata(tmp_path: Path) -> None:
    """With the devices that were met last."""
    made = two_steps()
    exporter = ParquetExporter(FileDestination(tmp_path / "x.parquet"))
    exporter.begin(made.info, made.tables)
    made.info.devices.append(Device("cuda", 1, uuid="GPU-1"))
    exporter.end(made.end)
    found = pq.read_metadata(tmp_path / "x.parquet").metadata
    info, end = (json.loads(found[key]) for key in (b"memexport.info", b"memexport.end"))
    assert (info["rank"], info["host"], info["command_line"]) == (0, "node-a", ["train.py", "--lr", "0.1"])
    assert info["devices"][1]["uuid"] == "GPU-1"
    assert end == {
        "warnings": ["two things are missing"],
        "dropped_events": 2,
        "alloc_retries": 0,
        "ooms": None,
    }


def test_rows_come_in_groups_and_each_has_only_its_own_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording of any length needs the memory of a group, and a file no more texts than its rows have."""
    monkeypatch.setattr("memexport.exporters.parquet.ROWS", 4)
    made = Made()
    for number in range(10):
        made.operator(f"operator {number}", number, 0)
    path = made.write(ParquetExporter, tmp_path / "x.parquet", size=3)
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [4, 2, 4]
    assert [row["name"] for row in file.read().to_pylist()] == [f"operator {number}" for number in range(10)]
    table = _arrow.ArrowTables(made.info, made.tables).table(made.batches(3)[1])
    assert table["name"].chunk(0).dictionary.to_pylist() == ["operator 3", "operator 4", "operator 5"]


def test_in_a_folder_of_a_rank_the_rank_is_not_in_the_file(tmp_path: Path) -> None:
    """A reader takes it from the folder; with one of another type in the file it would stumble."""
    made = two_steps()
    folder = tmp_path / partition(made.info)
    folder.mkdir()
    path = made.write(Partitioned, folder / "x.parquet")
    assert folder.name == "rank=0"
    assert "rank" not in pq.ParquetFile(path).schema_arrow.names


def test_a_recording_of_several_ranks_has_no_folder_of_its_own(tmp_path: Path) -> None:
    made = two_steps()
    made.marker("from afar", 0, rank=1)
    with pytest.raises(UsageError, match="events of rank 1"):
        made.write(Partitioned, tmp_path / "x.parquet")
    assert partition(Made().info) == "rank=__HIVE_DEFAULT_PARTITION__"


def test_duckdb_and_polars_read_the_file(tmp_path: Path) -> None:
    path = two_steps().write(ParquetExporter, tmp_path / "x.parquet")
    query = (
        f"SELECT name, max(allocated_bytes) FROM '{path}' WHERE kind = 'operator' GROUP BY 1 ORDER BY 2 DESC"
    )
    assert duckdb.sql(query).fetchall()[0] == ("prims::sum", 5608)
    frame = polars.read_parquet(path).filter(polars.col("kind") == "operator")
    assert frame["allocated_bytes"].max() == 5608


class TestTables:
    """`Recording.to_arrow` and what is made of it."""

    @pytest.fixture
    def recording(self, tmp_path: Path) -> memexport.Recording:
        return memexport.open(two_steps().write(ArchiveExporter, tmp_path / "two.memx"))

    def test_arrow_has_what_the_file_has(
        self, recording: memexport.Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Made of several pieces, it still has one dictionary a column."""
        memexport.convert(recording, tmp_path / "two.parquet")
        monkeypatch.setattr(_arrow, "ROWS", 4)
        recording = memexport.open(tmp_path / "two.memx")
        whole = EventBatch.concat(list(recording.batches()))
        parts = [whole.select(slice(first, first + 4)) for first in range(0, len(whole), 4)]
        monkeypatch.setattr(recording, "batches", lambda: iter(parts))
        table, file = recording.to_arrow(), pq.read_table(tmp_path / "two.parquet")
        assert table.num_rows == len(whole)
        assert table.column("name").num_chunks > 1
        assert table.to_pylist() == file.to_pylist()
        written = pq.read_metadata(tmp_path / "two.parquet").metadata
        assert table.schema.metadata == {key: written[key] for key in table.schema.metadata}
        assert len({tuple(chunk.dictionary.to_pylist()) for chunk in table.column("name").chunks}) == 1

    def test_pandas_keeps_integers_that_are_missing(self, recording: memexport.Recording) -> None:
        frame = recording.to_pandas()
        assert str(frame["allocated_bytes"].dtype) == "Int64"
        assert str(frame["address"].dtype) == "UInt64"
        assert str(frame["name"].dtype) == "category"
        assert frame["allocated_bytes"].max() == 5608
        assert (
            int(frame["allocated_bytes"].isna().sum()) == recording.to_arrow()["allocated_bytes"].null_count
        )

    def test_polars_has_every_row(self, recording: memexport.Recording) -> None:
        frame = recording.to_polars()
        assert frame.height == recording.to_arrow().num_rows
        peak = frame.filter(polars.col("allocated_bytes") == frame["allocated_bytes"].max())
        assert peak["module"].cast(polars.String).drop_nulls().to_list()[0] == "net.fc"

    def test_an_empty_recording_has_every_column(self, tmp_path: Path) -> None:
        with memexport.open(Made().write(ArchiveExporter, tmp_path / "empty.memx")) as recording:
            table = recording.to_arrow()
        assert isinstance(table, pa.Table)
        assert (table.num_rows, table.num_columns) == (0, 21)


@pytest.mark.parametrize(
    ("missing", "call"),
    [
        ("pyarrow", "recording.to_arrow()"),
        ("pandas", "recording.to_pandas()"),
        ("polars", "recording.to_polars()"),
        ("pyarrow", "memexport.convert(recording, 'x.parquet')"),
    ],
)
def test_a_library_that_is_missing_is_named_with_what_to_install(
    tmp_path: Path, missing: str, call: str
) -> None:
    two_steps().write(ArchiveExporter, tmp_path / "two.memx")
    code = (
        "import importlib.abc, sys\n"
        "class Missing(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {missing!r}: raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import memexport\nrecording = memexport.open('two.memx')\n"
        f"try: {call}\nexcept memexport.UsageError as error: print(error, error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert missing in done.stdout
    assert "pip install 'memexport[" in done.stdout


def test_a_disk_that_is_full_is_an_output_error_and_nothing_else(tmp_path: Path) -> None:
    """Nor does what Arrow would still write when it is collected."""
    made = two_steps()
    destination = FileDestination(Path("/dev/full"), overwrite=True, atomic=False)
    exporter = ParquetExporter(destination)
    with pytest.raises(OutputError, match="/dev/full"):
        exporter.begin(made.info, made.tables)
        exporter.write(made.batches()[0])
        exporter.end(made.end)
    exporter.abort()


def test_writing_imports_no_pandas(tmp_path: Path) -> None:
    """A tracker's exporter runs in the process that trains."""
    two_steps().write(ArchiveExporter, tmp_path / "two.memx")
    code = (
        "import sys, memexport\nmemexport.convert('two.memx', 'two.parquet')\n"
        "print({'pandas', 'torch', 'pyarrow'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip() == "{'pyarrow'}"


LONG = (
    PEAK_BYTES
    + """
import numpy as np
from memexport.exporters import FileDestination
from memexport.exporters.parquet import ROWS, ParquetExporter
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

tables = Tables()
names = np.array([tables.strings.intern(f"operator {n}") for n in range(1000)])
exporter = ParquetExporter(FileDestination(Path("x.parquet"), overwrite=True))
exporter.begin(RecordingInfo(), tables)
numbers, kinds = np.arange(ROWS // 8), np.ones(ROWS // 8, np.uint8)
for part in range(8 * int(sys.argv[1])):
    times = numbers + part * len(numbers)
    counters = {"size_bytes": times, "allocated_bytes": times * 512, "address": times * 4096}
    exporter.write(EventBatch(kind=kinds, time_unix_ns=times, name=names[numbers % 1000], **counters))
exporter.end(RecordingEnd())
print(peak_bytes())
"""
)


def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    """Of two and of ten row groups; the rest of a table would be some 90 bytes for each event."""

    def peak(groups: int) -> int:
        command = [sys.executable, "-c", LONG, str(groups)]
        return int(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)

    few, many = peak(2), peak(10)
    assert pq.read_metadata(tmp_path / "x.parquet").num_row_groups == 10
    assert many < few + 64 * 1024**2
