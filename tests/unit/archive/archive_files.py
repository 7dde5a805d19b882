"""What the archive's tests share: a small recording, and archives written, taken apart and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memexport.archive.framing import FRAME_BYTES, RecordReader, pack_record
from memexport.archive.v1 import archive_pb2 as pb
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.model import (
    COLUMNS,
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)
from memexport.sources.archive import ArchiveSource


@dataclass
class Small:
    """Three batches of four events; each batch brings a string, the second a stack and a device."""

    info: RecordingInfo
    tables: Tables
    batches: list[EventBatch]
    end: RecordingEnd
    data: bytes


def small_recording(path: Path) -> Small:
    """Written to the path batch by batch, while its tables grow."""
    info = RecordingInfo(producer="memexport", devices=[Device("cpu")], options={"b": "2", "a": "1"})
    tables, batches = Tables(), []
    end = RecordingEnd(warnings=("one tensor was seen twice",), dropped_events=7, ooms=0)
    exporter = ArchiveExporter(FileDestination(path, overwrite=True))
    exporter.begin(info, tables)
    for number in range(3):
        if number == 1:
            tables.stacks.intern([tables.strings.intern("train.py:41:step")])
            info.devices.append(Device("cuda", 0, "H200", "GPU-1", 2**37))
        name = tables.strings.intern(f"aten.op{number}.default")
        batches.append(_four_events(number, name, len(tables.stacks) - 1, len(info.devices) - 1))
        exporter.write(batches[-1])
    exporter.end(end)
    return Small(info, tables, batches, end, path.read_bytes())


def _four_events(number: int, name: int, stack: int, device: int) -> EventBatch:
    allocated = 10_000 * number + np.array([512, 1536, 1536, 1024])
    return EventBatch(
        kind=[EventKind.ALLOCATION, EventKind.ALLOCATION, EventKind.OPERATOR, EventKind.RELEASE],
        time_unix_ns=1_750_000_000_000_000_000 + 1_000_000 * number + np.array([100, 230, 20, 900]),
        duration_ns=[-1, -1, 517, -1],
        name=name,
        stack=stack,
        phase=Phase.FORWARD,
        category=[Category.ACTIVATION, Category.TEMPORARY, Category.UNKNOWN, Category.ACTIVATION],
        device=device,
        step=number,
        size_bytes=[512, 1024, 1536, 512],
        allocated_bytes=allocated,
        active_bytes=allocated,
        reserved_bytes=[-1, 2**21, 2**21, 2**21],
        address=[0x7F00_0000_0200, 0x7F00_0000_0400, 0, 0x7F00_0000_0200],
    )


def write_archive(
    path: Path,
    batches: Iterable[EventBatch] = (),
    info: RecordingInfo | None = None,
    tables: Tables | None = None,
    end: RecordingEnd | None = None,
) -> Path:
    """A whole archive."""
    exporter = ArchiveExporter(FileDestination(path, overwrite=True))
    exporter.begin(info or RecordingInfo(), tables or Tables())
    for batch in batches:
        exporter.write(batch)
    exporter.end(end or RecordingEnd())
    return path


def read_archive(path: Path) -> tuple[ArchiveSource, list[EventBatch], RecordingEnd]:
    """One pass over the whole of it."""
    source = ArchiveSource(path)
    batches = list(source.batches())
    source.close()
    return source, batches, source.end()


def records_of(path: Path) -> list[pb.Record]:
    """Its records, parsed, without their checksums."""
    with path.open("rb", buffering=0) as stream:
        return [pb.Record.FromString(f.body) for f in RecordReader(path, stream, path.stat().st_size)]


def record_ranges(path: Path) -> list[tuple[int, int]]:
    """Where each of its records begins and ends."""
    with path.open("rb", buffering=0) as stream:
        frames = list(RecordReader(path, stream, path.stat().st_size))
    return [(frame.offset, frame.offset + FRAME_BYTES + len(frame.body)) for frame in frames]


def write_records(path: Path, records: Iterable[pb.Record]) -> Path:
    """A file of these records, framed."""
    path.write_bytes(b"".join(pack_record(record.SerializeToString()) for record in records))
    return path


def contents(batch: EventBatch) -> bytes:
    """All values of a batch, as one comparable value."""
    return b"".join(np.ascontiguousarray(getattr(batch, name)).tobytes() for name in COLUMNS)


def assert_equal(read: Sequence[EventBatch], written: Sequence[EventBatch]) -> None:
    """Every event is the same, whatever batches they come in."""
    left, right = EventBatch.concat(list(read)), EventBatch.concat(list(written))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
        assert getattr(left, name).dtype == COLUMNS[name]
