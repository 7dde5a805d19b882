"""Small recordings of the ranks of a run, made event by event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memexport.exporters import FileDestination
from memexport.exporters.archive import ArchiveExporter
from memexport.model import (
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

MIB = 1 << 20
START = 1_750_000_000_000_000_000


def recorded(path: Path, rank: int | None, activation: int, ranks: int | None) -> Path:
    """An archive of a rank that keeps activations of so many bytes in its forward, beside 10 MiB."""
    info, tables = RecordingInfo(rank=rank, world_size=ranks, devices=[Device("cuda", 0)]), Tables()
    intern = tables.strings.intern
    net, fc, mm = intern("net"), intern("net.fc"), intern("aten.mm.default")
    live = 10 * MIB + activation
    rows = [
        (EventKind.ALLOCATION, Phase.UNKNOWN, Category.PARAMETER, net, 0, 10 * MIB, 10 * MIB, 1),
        (EventKind.ALLOCATION, Phase.FORWARD, Category.ACTIVATION, fc, mm, activation, live, 2),
        (EventKind.RELEASE, Phase.BACKWARD, Category.ACTIVATION, fc, mm, activation, 10 * MIB, 2),
    ]
    names = ("kind", "phase", "category", "module", "name", "size_bytes", "allocated_bytes", "address")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {"device": 0, "step": 0, "rank": -1 if rank is None else rank}
    exporter = ArchiveExporter(FileDestination(path, overwrite=True))
    exporter.begin(info, tables)
    exporter.write(EventBatch(**columns, time_unix_ns=[START, START + 1, START + 2]))
    exporter.end(RecordingEnd(warnings=("too warm",) if rank == 1 else ()))
    return path
