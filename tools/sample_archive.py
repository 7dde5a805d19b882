"""Make the archive of this version of the schema for tests/data/archives, and what it must read as for ever.

python tools/sample_archive.py      run once, when a version of the schema is released; never overwrites
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.model import (
    SCHEMA_VERSION,
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

ARCHIVES = Path(__file__).resolve().parent.parent / "tests/data/archives"
START_TIME_UNIX_NS = 1_750_000_000_000_000_000


def sample() -> tuple[RecordingInfo, Tables, list[EventBatch], RecordingEnd]:
    """A little of everything: every kind, phase, category and null, and every encoding of a column."""
    tables = Tables()
    names = [tables.strings.intern(name) for name in ("aten.addmm.default", "aten.gelu.default", "π", "step")]
    frames = [tables.strings.intern(frame) for frame in ("train.py:41:step", "model.py:7:forward")]
    stack = tables.stacks.intern(frames)
    info = RecordingInfo(
        producer="memexport",
        producer_version="0.1.0",
        start_time_unix_ns=START_TIME_UNIX_NS,
        host="trainer-0",
        pid=4711,
        rank=1,
        local_rank=1,
        world_size=8,
        devices=[Device("cpu"), Device("cuda", 0, "NVIDIA H200", "GPU-0000", 150_754_820_096)],
        torch_version="2.13.0",
        python_version="3.11.7",
        command_line=("train.py", "--epochs", "3"),
        options={"flush_interval": "1.0"},
    )
    end = RecordingEnd(("two tensors share a storage",), 3, 1, 0)
    return info, tables, [_varied(names, stack), _constant(), _extreme()], end


def _varied(names: list[int], stack: int) -> EventBatch:
    """Sixty-four events in the rhythm of training."""
    number = np.arange(64)
    kind = np.array([EventKind.ALLOCATION, EventKind.OPERATOR, EventKind.RELEASE, EventKind.SPAN])[number % 4]
    size = np.where(kind == EventKind.SPAN, -(2**63), 512 * (1 + number // 4 % 5))
    moved = np.where(kind == EventKind.ALLOCATION, size, np.where(kind == EventKind.RELEASE, -size, 0))
    duration = np.where(
        kind == EventKind.OPERATOR, 700 + 31 * number, np.where(kind == EventKind.SPAN, 9_999, -1)
    )
    allocated = 4096 + np.cumsum(moved)
    return EventBatch(
        kind=kind,
        time_unix_ns=START_TIME_UNIX_NS + 12_345 * number - np.maximum(duration, 0),
        duration_ns=duration,
        name=np.array(names)[number % 3],
        module=np.where(number < 32, names[2], 0),
        thread=names[3],
        stack=np.where(number % 2, stack, 0),
        inputs=np.where(number % 3, names[2], 0),
        phase=np.array(list(Phase))[number % len(Phase)],
        category=np.array(list(Category))[number % len(Category)],
        device=np.where(number % 16 == 15, -1, number % 2),
        step=number // 16 - 1,
        rank=1,
        size_bytes=size,
        allocated_bytes=allocated,
        active_bytes=allocated + 512 * (number % 3),
        reserved_bytes=np.where(number < 8, -1, 2**21 * (1 + number // 32)),
        address=np.where(moved == 0, 0, 0x7F00_0000_0000 + 512 * (number // 4 % 7)),
        input_bytes=np.where(kind == EventKind.SPAN, 128 * number, -1),
        output_bytes=np.where((kind == EventKind.SPAN) & (number % 8 == 3), 96 * number, -1),
    )


def _constant() -> EventBatch:
    return EventBatch(kind=np.full(3, EventKind.SAMPLE), time_unix_ns=START_TIME_UNIX_NS + 10**9, device=1)


def _extreme() -> EventBatch:
    """The least and the greatest of each column, as far as they are valid."""
    least, greatest = -(2**63), 2**63 - 1
    return EventBatch(
        kind=[EventKind.MARKER, EventKind.ALLOCATION, EventKind.RELEASE],
        time_unix_ns=[greatest, least, 0],
        duration_ns=[greatest, least, 0],
        step=[2**31 - 1, -(2**31), 0],
        rank=[-(2**31), 2**31 - 1, 0],
        size_bytes=[greatest, least, -1],
        allocated_bytes=[least, greatest, 0],
        active_bytes=[greatest, least, 0],
        reserved_bytes=[0, least, greatest],
        address=[0, 2**64 - 1, 2**63],
        input_bytes=[least, greatest, 0],
        output_bytes=[0, least, greatest],
    )


def described(
    info: RecordingInfo, tables: Tables, batches: list[EventBatch], end: RecordingEnd
) -> dict[str, Any]:
    """Everything that the recording says, as JSON has it."""
    columns = EventBatch.concat(batches).columns()
    stacks = [tables.stacks.frames(stack) for stack in range(len(tables.stacks))]
    described_info = {**dataclasses.asdict(info), "unknown_fields": info.unknown_fields.hex()}
    content = {
        "info": described_info,
        "strings": list(tables.strings),
        "stacks": stacks,
        "columns": {name: column.tolist() for name, column in columns.items()},
        "end": dataclasses.asdict(end),
    }
    plain: dict[str, Any] = json.loads(json.dumps(content))
    return plain


def main() -> int:
    """Write both files; the exit code."""
    archive, expected = ARCHIVES / f"{SCHEMA_VERSION}.memx", ARCHIVES / f"{SCHEMA_VERSION}.json"
    if archive.exists():
        print(f"{archive} exists: what is released never changes", file=sys.stderr)
        return 1
    info, tables, batches, end = sample()
    exporter = ArchiveExporter(FileDestination(archive))
    exporter.begin(info, tables)
    for batch in batches:
        exporter.write(batch)
    exporter.end(end)
    expected.write_text(
        json.dumps(described(info, tables, batches, end), indent=1, ensure_ascii=False) + "\n"
    )
    print(f"wrote {archive} and {expected}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
