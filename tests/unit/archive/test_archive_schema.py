"""The schema is a contract: what was released opens for ever, and what is newer is refused or said to be."""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from archive_files import (
    assert_equal,
    read_archive,
    records_of,
    small_recording,
    write_archive,
    write_records,
)

from memexport.archive.v1 import archive_pb2 as pb
from memexport.errors import InputError
from memexport.model import COLUMNS, Category, EventBatch, EventKind, Phase
from memexport.sources.archive import ArchiveSource

ROOT = Path(__file__).resolve().parents[3]
ARCHIVES = sorted((ROOT / "tests/data/archives").glob("*.memx"))
SCHEMAS = sorted((ROOT / "tests/data/schemas").iterdir())
BUF = shutil.which("buf", path=Path(sys.executable).parent) or shutil.which("buf")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording.memx"


def varint(number: int) -> bytes:
    """As protobuf has it."""
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def unknown_field(number: int, text: bytes) -> bytes:
    """A field of a later version."""
    return varint(number << 3 | 2) + varint(len(text)) + text


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_an_archive_of_any_released_version_reads_as_on_its_first_day(path: Path) -> None:
    source, batches, end = read_archive(path)
    expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    info = {**dataclasses.asdict(source.info), "unknown_fields": source.info.unknown_fields.hex()}
    info = json.loads(json.dumps(info)) | {"schema_version": path.stem}
    assert expected["info"] == {name: info[name] for name in expected["info"]}  # later versions know more
    assert expected["end"] == json.loads(json.dumps(dataclasses.asdict(end)))
    assert expected["strings"] == list(source.tables.strings)
    stacks = source.tables.stacks
    assert expected["stacks"] == [stacks.frames(stack) for stack in range(len(stacks))]
    columns = EventBatch.concat(batches).columns()
    assert expected["columns"] == {name: columns[name].tolist() for name in expected["columns"]}


def test_there_is_an_archive_and_a_schema_of_version_1_0() -> None:
    assert "1.0" in {path.stem for path in ARCHIVES}
    assert "1.0" in {path.name for path in SCHEMAS}


def test_a_newer_major_version_is_refused_by_name(path: Path) -> None:
    write_records(path, [pb.Record(header=pb.Header(schema_major=2, schema_minor=3))])
    with pytest.raises(InputError, match=r"written by schema 2\.3; this memexport reads up to 1\.x") as error:
        ArchiveSource(path)
    assert error.value.hint == "upgrade memexport"


def test_a_header_without_a_version_is_an_error(path: Path) -> None:
    with pytest.raises(InputError, match="names no version"):
        ArchiveSource(write_records(path, [pb.Record(header=pb.Header())]))


def test_a_newer_minor_version_is_read_and_said_to_be_newer(path: Path) -> None:
    small = small_recording(path)
    records = records_of(path)
    records[0].header.schema_minor = 3
    source, batches, end = read_archive(write_records(path, records))
    assert source.info.schema_version == "1.3"
    assert_equal(batches, small.batches)
    assert end.warnings[1:] == ("written by schema 1.3, read by 1.1: what is new in it is left out",)


def test_unknown_header_fields_survive_a_copy(path: Path, tmp_path: Path) -> None:
    small_recording(path)
    records = records_of(path)
    field = unknown_field(1000, b"of a later version")
    records[0].header.MergeFromString(field)
    source, _, _ = read_archive(write_records(path, records))
    assert source.info.unknown_fields == field
    copy = write_archive(tmp_path / "copy.memx", info=source.info)
    assert read_archive(copy)[0].info.unknown_fields == field


def test_an_unknown_column_is_left_out_with_a_warning(path: Path) -> None:
    small = small_recording(path)
    records = records_of(path)
    batch = next(record.batch for record in records if record.HasField("batch"))
    new = pb.Column.FromString(varint(1 << 3) + varint(99))
    batch.columns.append(new)
    batch.columns.append(new)
    _, batches, end = read_archive(write_records(path, records))
    assert_equal(batches, small.batches)
    assert end.warnings[1:] == ("columns of an unknown type are left out: 99",)


def test_a_column_that_stands_twice_is_an_error(path: Path) -> None:
    small_recording(path)
    records = records_of(path)
    batch = next(record.batch for record in records if record.HasField("batch"))
    batch.columns.append(batch.columns[0])
    with pytest.raises(InputError, match="stands twice"):
        read_archive(write_records(path, records))


def test_an_unknown_record_is_left_out_with_a_warning(path: Path) -> None:
    small = small_recording(path)
    records = records_of(path)
    records.insert(2, pb.Record.FromString(unknown_field(50, b"of a later version")))
    _, batches, end = read_archive(write_records(path, records))
    assert_equal(batches, small.batches)
    assert end.warnings[1:] == ("1 records of an unknown type are left out",)


def test_unknown_kinds_phases_and_categories_are_left_out_with_a_warning(path: Path) -> None:
    batch = EventBatch(kind=[1, 200, 6], phase=[5, 5, 6], category=[16, 15, 255], step=[1, 2, 3])
    _, (read,), end = read_archive(write_archive(path, [batch, EventBatch(kind=[7])]))
    assert list(read.kind) == [1, 6]
    assert list(read.phase) == [5, 0]
    assert list(read.category) == [0, 0]
    assert list(read.step) == [1, 3]
    assert end.warnings == (
        "2 events of an unknown kind are left out",
        "3 unknown phases or categories are shown as not known",
    )


@pytest.mark.parametrize(
    ("model", "schema", "prefix"),
    [
        (EventKind, pb.EventKind, "EVENT_KIND"),
        (Phase, pb.Phase, "PHASE"),
        (Category, pb.Category, "CATEGORY"),
    ],
)
def test_the_schemas_enums_are_the_models(model: type[enum.IntEnum], schema: object, prefix: str) -> None:
    expected = {f"{prefix}_{member.name}": int(member) for member in model}
    expected = {name: number for name, number in expected.items() if number} | {f"{prefix}_UNSPECIFIED": 0}
    assert dict(schema.items()) == expected  # type: ignore[attr-defined]


def test_the_schema_has_every_column_of_the_model() -> None:
    names = [name.removeprefix("COLUMN_ID_").lower() for name, _ in pb.ColumnId.items()]
    assert names == ["unspecified", *COLUMNS]


def test_protoc_reads_an_archive(path: Path) -> None:
    small_recording(path)
    protoc = shutil.which("protoc")
    command = [protoc] if protoc else [sys.executable, "-m", "grpc_tools.protoc"]
    arguments = [f"-I{ROOT / 'schemas'}", "--decode=memexport.archive.v1.Archive"]
    with path.open("rb") as stream:
        decoded = subprocess.run(
            [*command, *arguments, "memexport/archive/v1/archive.proto"],
            stdin=stream,
            capture_output=True,
            text=True,
            check=True,
        )
    assert decoded.stderr == ""
    assert decoded.stdout.count("records {") == len(records_of(path))
    for line in ("schema_major: 1", 'strings: "aten.op2.default"', "id: COLUMN_ID_KIND", "event_count: 12"):
        assert line in decoded.stdout


def test_the_whole_file_is_one_message_that_the_python_classes_read(path: Path) -> None:
    small = small_recording(path)
    archive = pb.Archive.FromString(small.data)
    assert {record.sync for record in archive.records} == {0x1A0A0D584D454D89}
    assert archive.records[-1].footer.event_count == 12


def test_the_generated_code_is_what_the_schema_gives() -> None:
    subprocess.run([sys.executable, ROOT / "tools/gen_protos.py", "--check"], check=True)


def test_buf_finds_nothing_to_complain_of() -> None:
    assert BUF, "buf is in the extra `dev` (buf-bin)"
    subprocess.run([BUF, "lint"], cwd=ROOT, check=True)


@pytest.mark.parametrize("released", SCHEMAS, ids=lambda path: path.name)
def test_the_schema_breaks_no_released_version(released: Path) -> None:
    assert BUF, "buf is in the extra `dev` (buf-bin)"
    subprocess.run([BUF, "breaking", "--against", released.relative_to(ROOT)], cwd=ROOT, check=True)
