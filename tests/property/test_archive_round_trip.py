"""Arbitrary recordings come back from an archive as they were; arbitrary damage never changes a number."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from memexport.archive.codec import BatchDecoder, BatchEncoder
from memexport.archive.framing import pack_record
from memexport.archive.v1 import archive_pb2 as pb
from memexport.errors import InputError
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.model import COLUMNS, NULLS, Column, Device, EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources.archive import ArchiveSource

ONE_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
OPTIONAL_TEXT = st.none() | TEXT
INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arbitrary.memx"


def columns_of(length: int) -> st.SearchStrategy[dict[str, Column]]:
    """Some of the columns: a scalar, or any values of the type, its extremes and nulls among them."""
    columns = {}
    for name, dtype in COLUMNS.items():
        limits = np.iinfo(dtype)
        values = st.sampled_from([NULLS[name], limits.min, limits.max]) | st_numpy.from_dtype(dtype)
        arrays = st_numpy.arrays(dtype, length, elements=values, fill=values)
        columns[name] = arrays | values.map(dtype.type)
    required = {"kind": columns.pop("kind").filter(lambda kind: np.ndim(kind) == 1)}
    return st.fixed_dictionaries(required, optional=columns)


BATCHES = st.integers(0, 70).flatmap(columns_of).map(lambda columns: EventBatch(**columns))


@st.composite
def recordings(draw: st.DrawFn) -> tuple[RecordingInfo, Tables, list[EventBatch], RecordingEnd]:
    """A recording whose ids and enumerations are valid."""
    tables = Tables()
    for string in draw(st.lists(TEXT, max_size=5)):
        tables.strings.intern(string)
    for parent, frame in draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=5)):
        tables.stacks.child(parent % len(tables.stacks), frame % len(tables.strings))
    device = st.builds(Device, TEXT, st.none() | INT64, OPTIONAL_TEXT, OPTIONAL_TEXT, st.none() | INT64)
    info = draw(
        st.builds(
            RecordingInfo,
            producer=OPTIONAL_TEXT,
            clock=st.sampled_from(["unix", "index"]),
            start_time_unix_ns=st.none() | INT64,
            host=OPTIONAL_TEXT,
            world_size=st.none() | INT64,
            devices=st.lists(device, max_size=3),
            command_line=st.lists(TEXT, max_size=3).map(tuple),
            options=st.dictionaries(TEXT, TEXT, max_size=3),
        )
    )
    batches = [_with_valid_ids(batch, info, tables) for batch in draw(st.lists(BATCHES, max_size=3))]
    counts = st.none() | st.integers(0, 2**64 - 1)
    warnings = st.lists(TEXT, max_size=2).map(tuple)
    return (
        info,
        tables,
        batches,
        draw(st.builds(RecordingEnd, warnings, st.integers(0, 2**63), counts, counts)),
    )


def _with_valid_ids(batch: EventBatch, info: RecordingInfo, tables: Tables) -> EventBatch:
    lengths = {"kind": 7, "phase": 6, "category": 16, "stack": len(tables.stacks)}
    lengths |= dict.fromkeys(("name", "module", "thread", "inputs"), len(tables.strings))
    columns = {
        name: column % lengths.get(name, 2**64 - 1)
        for name, column in batch.columns().items()
        if name in lengths
    }
    device = batch.device % (len(info.devices) + 1) - 1
    return EventBatch(**{**batch.columns(), **columns, "device": device})


def write(path: Path, recording: tuple[RecordingInfo, Tables, list[EventBatch], RecordingEnd]) -> None:
    """The recording as an archive."""
    info, tables, batches, end = recording
    exporter = ArchiveExporter(FileDestination(path, overwrite=True))
    exporter.begin(info, tables)
    for batch in batches:
        exporter.write(batch)
    exporter.end(end)


def values(batch: EventBatch) -> dict[str, list[int]]:
    """All values of a batch."""
    return {name: column.tolist() for name, column in batch.columns().items()}


@given(BATCHES.filter(len))
@settings(deadline=None, max_examples=300)
def test_any_batch_comes_back_from_its_message(batch: EventBatch) -> None:
    message = BatchEncoder().encode(batch, 5)
    read = BatchDecoder().decode(pb.EventBatch.FromString(message.SerializeToString()))
    assert message.first_event == 5
    assert values(read) == values(batch)
    assert [c.dtype for c in read.columns().values()] == list(COLUMNS.values())


@given(recording=recordings())
@settings(ONE_FILE, max_examples=150)
def test_any_recording_comes_back_from_its_archive(
    path: Path, recording: tuple[RecordingInfo, Tables, list[EventBatch], RecordingEnd]
) -> None:
    write(path, recording)
    info, tables, batches, end = recording
    source = ArchiveSource(path)
    read = list(source.batches())
    assert source.info == info
    assert source.end() == end
    assert list(source.tables.strings) == list(tables.strings)
    assert source.tables.stacks.since(0) == tables.stacks.since(0)
    assert values(EventBatch.concat(read)) == values(EventBatch.concat(batches))
    source.close()


@given(recording=recordings(), damage=st.data())
@settings(ONE_FILE, max_examples=150)
def test_bytes_changed_anywhere_never_change_a_number_in_silence(
    path: Path, recording: tuple[RecordingInfo, Tables, list[EventBatch], RecordingEnd], damage: st.DataObject
) -> None:
    write(path, recording)
    data = bytearray(path.read_bytes())
    start = damage.draw(st.integers(0, len(data) - 1))
    data[start : start + damage.draw(st.integers(0, 40))] = damage.draw(st.binary(max_size=40))
    same = bytes(data) == path.read_bytes()
    path.write_bytes(data)
    written = [values(batch) for batch in recording[2]]
    try:
        source = ArchiveSource(path)
        read = [values(batch) for batch in source.batches()]
    except InputError:
        assert not same
        return
    assert all(batch in written for batch in read)
    assert same or len(source.end().warnings) > 0


@given(noise=st.binary(max_size=300), position=st.floats(0, 1))
@settings(ONE_FILE, max_examples=100)
def test_noise_with_a_right_checksum_raises_nothing_but_input_errors(
    path: Path, noise: bytes, position: float
) -> None:
    write(
        path, (RecordingInfo(), Tables(), [EventBatch(kind=np.arange(5) % 3, time_unix_ns=7)], RecordingEnd())
    )
    body = bytearray(
        pb.Record(batch=BatchEncoder().encode(EventBatch(kind=[1, 2, 3]), 5)).SerializeToString()
    )
    start = int(position * len(body))
    body[start : start + len(noise)] = noise
    data = path.read_bytes()
    path.write_bytes(data[:-60] + pack_record(bytes(body)))
    with contextlib.suppress(InputError):
        list(ArchiveSource(path).batches())
