"""A damaged archive gives what is intact of it, says what is lost, and never a wrong number."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from archive_files import (
    Small,
    assert_equal,
    contents,
    read_archive,
    record_ranges,
    records_of,
    small_recording,
    write_archive,
    write_records,
)

from memexport.archive.framing import FRAME_BYTES, SYNC, pack_record
from memexport.archive.tables import LOST
from memexport.archive.v1 import archive_pb2 as pb
from memexport.errors import InputError
from memexport.model import Device, EventBatch
from memexport.sources.archive import ArchiveSource

NO_END = "the recording has no end: it was cut short, or is still being written"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.memx"


@pytest.fixture
def small(path: Path) -> Small:
    return small_recording(path)


def check_intact_part(path: Path, small: Small) -> tuple[int, tuple[str, ...]]:
    """Read it; every batch is one that was written, in order; the number of batches and the new warnings."""
    source, batches, end = read_archive(path)
    written = [contents(batch) for batch in small.batches]
    positions = [written.index(contents(batch)) for batch in batches]
    assert positions == sorted(set(positions))
    for read, expected in zip(source.tables.strings, small.tables.strings, strict=False):
        assert read in (expected, LOST)
    for read_device, device in zip(source.info.devices, small.info.devices, strict=False):
        assert read_device == device or read_device.type == LOST
    recorded = small.end.warnings if end.warnings[:1] == small.end.warnings else ()
    return len(batches), end.warnings[len(recorded) :]


def test_a_cut_at_any_byte_keeps_every_record_before_it_and_is_reported(path: Path, small: Small) -> None:
    ranges = record_ranges(path)
    kinds = [record.WhichOneof("body") for record in records_of(path)]
    ends_of_batches = [end for (_, end), kind in zip(ranges, kinds, strict=True) if kind == "batch"]
    for length in range(len(small.data)):
        path.write_bytes(small.data[:length])
        if length < ranges[0][1]:
            with pytest.raises(InputError):
                ArchiveSource(path)
            continue
        batches, warnings = check_intact_part(path, small)
        assert batches == sum(end <= length for end in ends_of_batches), length
        assert NO_END in warnings


def test_the_whole_file_gives_no_warning(path: Path, small: Small) -> None:
    assert check_intact_part(path, small) == (3, ())


@pytest.mark.parametrize("flip", [1, 2, 4, 8, 16, 32, 64, 128, 255])
def test_any_flipped_byte_gives_an_error_or_a_warning(path: Path, small: Small, flip: int) -> None:
    for position in range(len(small.data)):
        damaged = bytearray(small.data)
        damaged[position] ^= flip
        path.write_bytes(damaged)
        try:
            _, warnings = check_intact_part(path, small)
        except InputError:
            continue
        assert warnings, f"the flip at byte {position} went unnoticed"


def test_a_lost_batch_is_counted_in_bytes_and_events(path: Path, small: Small) -> None:
    batch = [i for i, r in enumerate(records_of(path)) if r.HasField("batch")][1]
    start, end = record_ranges(path)[batch]
    path.write_bytes(small.data[: start + 30] + b"\0" * 5 + small.data[start + 35 :])
    batches, warnings = check_intact_part(path, small)
    assert batches == 2
    lost = f"the archive is damaged or cut at byte {start}: {end - start} bytes are lost"
    assert warnings[:2] == (lost, "4 events are lost")


def test_a_lost_last_batch_is_known_from_the_footer(path: Path, small: Small) -> None:
    batch = [i for i, r in enumerate(records_of(path)) if r.HasField("batch")][-1]
    start, end = record_ranges(path)[batch]
    path.write_bytes(small.data[:start] + small.data[end:])
    assert check_intact_part(path, small) == (2, ("4 events are lost",))


def test_lost_strings_stacks_and_devices_shift_no_later_id(path: Path, small: Small) -> None:
    data = bytearray(small.data)
    lost = 0
    for (start, _), record in zip(record_ranges(path), records_of(path), strict=True):
        grown = record.tables
        if grown.first_string == 2 or grown.stack_parents or grown.first_device:
            data[start + FRAME_BYTES] ^= 0xFF
            lost += 1
    assert lost == 3
    path.write_bytes(data)
    source, batches, end = read_archive(path)
    assert list(source.tables.strings) == ["", "aten.op0.default", LOST, LOST, "aten.op2.default"]
    assert source.tables.stacks.frames(1) == [0]
    assert source.info.devices == [Device("cpu"), Device(LOST, 1)]
    assert_equal(batches, small.batches)
    assert any("are lost, and shown as (lost)" in warning for warning in end.warnings)


def test_a_later_pass_repeats_the_warnings_and_the_ids(path: Path, small: Small) -> None:
    tables = next(i for i, r in enumerate(records_of(path)) if r.HasField("tables"))
    start, _ = record_ranges(path)[tables]
    path.write_bytes(small.data[: start + 25] + b"\xff" + small.data[start + 26 :])
    source = ArchiveSource(path)
    first, first_end, strings = list(source.batches()), source.end(), list(source.tables.strings)
    second, second_end = list(source.batches()), source.end()
    assert_equal(first, second)
    assert first_end == second_end
    assert strings == list(source.tables.strings)


def test_a_lost_header_is_an_error(path: Path, small: Small) -> None:
    path.write_bytes(small.data[:25] + b"\xff" + small.data[26:])
    with pytest.raises(InputError, match="header is missing or damaged"):
        ArchiveSource(path)


def test_a_file_damaged_in_its_first_bytes_is_still_known_as_an_archive(small: Small) -> None:
    assert ArchiveSource.sniff(small.data)
    assert ArchiveSource.sniff(b"\0" + small.data[1:])
    assert not ArchiveSource.sniff(b"\x80\x04\x95 a pickle")


def test_bytes_inserted_between_records_are_stepped_over(path: Path, small: Small) -> None:
    start, _ = record_ranges(path)[2]
    noise = np.random.default_rng(0).bytes(3_000_000) + SYNC + b"\x0a" + SYNC[:5]
    path.write_bytes(small.data[:start] + noise + small.data[start:])
    batches, warnings = check_intact_part(path, small)
    assert batches == 3
    assert warnings == (f"the archive is damaged or cut at byte {start}: {len(noise)} bytes are lost",)


def test_of_two_archives_joined_only_the_first_is_read(path: Path, small: Small) -> None:
    path.write_bytes(small.data * 2)
    assert check_intact_part(path, small) == (
        3,
        (f"what follows the end of the recording, from byte {len(small.data)}, is not read",),
    )


def test_an_archive_appended_to_one_that_was_cut_is_not_mixed_into_it(path: Path, small: Small) -> None:
    start, _ = record_ranges(path)[-2]
    path.write_bytes(small.data[:start] + small.data)
    batches, warnings = check_intact_part(path, small)
    assert batches == 3
    assert f"what follows the end of the recording, from byte {start}, is not read" in warnings


def test_a_file_that_shrinks_while_it_is_read_is_an_error(path: Path, small: Small) -> None:
    source = ArchiveSource(path)
    batches = source.batches()
    next(batches)
    path.write_bytes(small.data[:100])
    with pytest.raises(InputError, match="became shorter"):
        list(batches)


@pytest.mark.parametrize("size", [0, 1, 19, 20, 21, 70_000])
def test_noise_is_an_error_and_nothing_else(path: Path, size: int) -> None:
    path.write_bytes(np.random.default_rng(size).bytes(size))
    with pytest.raises(InputError):
        ArchiveSource(path)


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.memx", tmp_path):
        with pytest.raises(InputError):
            ArchiveSource(path)


def test_a_closed_source_gives_an_error(path: Path, small: Small) -> None:
    source = ArchiveSource(path)
    batches = source.batches()
    source.close()
    source.close()
    with pytest.raises(InputError):
        next(batches)
    with pytest.raises(InputError):
        source.batches()


def hostile_batch(**changes: object) -> pb.Record:
    frame = zstandard.compress(np.arange(4, dtype=np.uint8).tobytes())
    packed = pb.Packed(width_bytes=1, planes=frame)
    column = pb.Column(id=pb.COLUMN_ID_NAME, encoding=pb.ENCODING_PLAIN, values=packed)
    record = pb.Record(batch=pb.EventBatch(event_count=4, columns=[column]))
    for field, value in changes.items():
        target: object = record.batch
        *parents, last = field.split("__")
        for parent in parents:
            target = target.columns[0] if parent == "column" else getattr(target, parent)  # type: ignore[attr-defined]
        if isinstance(value, pb.Packed):
            getattr(target, last).CopyFrom(value)
        else:
            setattr(target, last, value)
    return record


def claims(size: int) -> bytes:
    """A Zstandard frame that says its content has this size, and has none."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\0\0"


@pytest.mark.parametrize(
    "changes",
    [
        {"event_count": 0},
        {"event_count": 2**32 - 1},
        {"event_count": 5},
        {"event_count": 2**20, "column__values__planes": claims(2**40)},
        {"column__values__planes": claims(2**40)},
        {"column__values__planes": claims(4)},
        {"column__values__planes": b""},
        {"column__values__width_bytes": 5},
        {"column__values__width_bytes": 2**31},
        {"column__encoding": 0},
        {"column__encoding": 99},
        {"column__encoding": pb.ENCODING_LEVEL},
        {"column__encoding": pb.ENCODING_DICTIONARY},
        {"column__encoding": pb.ENCODING_DICTIONARY, "column__dictionary_count": 3},
        {"column__encoding": pb.ENCODING_DICTIONARY, "column__dictionary_count": 2**31},
        {
            "column__encoding": pb.ENCODING_DICTIONARY,
            "column__dictionary_count": 4,
            "column__dictionary": pb.Packed(width_bytes=4, planes=claims(2**40)),
        },
    ],
    ids=str,
)
def test_a_batch_that_claims_more_than_it_holds_is_an_error_and_takes_no_memory(
    path: Path, changes: dict[str, object]
) -> None:
    header = pb.Record(header=pb.Header(schema_major=1))
    write_records(path, [header, hostile_batch(**changes)])
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            ArchiveSource(path)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "tables",
    [
        pb.Tables(first_string=2**40, strings=["far"]),
        pb.Tables(first_device=2**63, devices=[pb.Device(type="cpu")]),
        pb.Tables(first_stack=2**40, stack_parents=[0], stack_frames=[0]),
        pb.Tables(first_stack=1, stack_parents=[1], stack_frames=[0]),
        pb.Tables(first_stack=1, stack_parents=[0, 0], stack_frames=[0]),
        pb.Tables(first_stack=1, stack_parents=[0], stack_frames=[2**32 - 1]),
    ],
    ids=str,
)
def test_a_table_with_impossible_ids_is_an_error_and_takes_no_memory(path: Path, tables: pb.Tables) -> None:
    write_records(path, [pb.Record(header=pb.Header(schema_major=1)), pb.Record(tables=tables)])
    with pytest.raises(InputError):
        ArchiveSource(path)


def test_a_record_that_claims_two_gigabytes_is_lost_and_takes_no_memory(path: Path, small: Small) -> None:
    start, _ = record_ranges(path)[1]
    path.write_bytes(small.data[:start] + b"\x0a\xf0\xff\xff\xff\x07" + small.data[start + 6 :])
    tracemalloc.start()
    check_intact_part(path, small)
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


def test_a_file_of_false_starts_is_given_up_in_time(path: Path) -> None:
    start = bytearray(pack_record(b""))
    start[15:20] = b"\x15\xff\xff\xff\xff"
    starts = []
    for position in range(0, 2_000_000, 20):
        length = 2_000_000 - position - 6
        start[1:6] = bytes([length >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)] + [length >> 28])
        starts.append(bytes(start))
    path.write_bytes(b"".join(starts))
    with pytest.raises(InputError, match="damaged beyond recovery"):
        ArchiveSource(path)


def test_an_intact_record_that_is_no_protobuf_is_an_error(path: Path, small: Small) -> None:
    path.write_bytes(small.data[: record_ranges(path)[0][1]] + pack_record(b"\xff\xff\xff"))
    with pytest.raises(InputError, match="not a record of an archive"):
        ArchiveSource(path)


def test_batches_in_the_wrong_order_are_an_error(path: Path, small: Small) -> None:
    header, first, second, *_ = (r for r in records_of(path) if r.WhichOneof("body") in ("header", "batch"))
    write_records(path, [header, second, first])
    with pytest.raises(InputError, match="after"):
        read_archive(path)


def test_ids_that_no_table_has_are_shown_as_not_known_with_a_warning(path: Path) -> None:
    batch = EventBatch(kind=[1, 1, 1], name=[0, 2**32 - 1, 0], device=[-1, 0, -2])
    _, (read,), end = read_archive(write_archive(path, [batch]))
    assert list(read.name) == [0, 0, 0]
    assert list(read.device) == [-1, -1, -1]
    assert end.warnings == ("3 values refer to names, stacks or devices that the file does not hold",)
