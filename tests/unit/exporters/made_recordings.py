"""Small recordings for the exporters' tests, made event by event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memexport.exporters import Exporter, FileDestination
from memexport.model import (
    COLUMNS,
    NULLS,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

START = 1_750_000_000_123_456_789
STRINGS = ("name", "module", "thread")


class Made:
    """A recording under construction; times count from `START`, or from 0 with the index clock."""

    def __init__(self, **info: Any) -> None:
        given = {"producer": "test", "start_time_unix_ns": START, "devices": [Device("cuda", 0)], **info}
        self.info = RecordingInfo(**given)
        self.tables = Tables()
        self.rows: list[dict[str, Any]] = []
        self.end = RecordingEnd()

    def add(self, kind: EventKind, begin: int, duration: int = -1, **columns: Any) -> None:
        """Append an event; strings by their text."""
        start = START if self.info.clock == "unix" else 0
        ids = {name: self.tables.strings.intern(columns.pop(name)) for name in STRINGS if name in columns}
        given = {"kind": kind, "time_unix_ns": start + begin, "duration_ns": duration, **columns, **ids}
        self.rows.append({**NULLS, **given})

    def operator(self, name: str, begin: int, duration: int, **columns: Any) -> None:
        """Append an OPERATOR."""
        self.add(EventKind.OPERATOR, begin, duration, name=name, **columns)

    def span(self, name: str, begin: int, duration: int, **columns: Any) -> None:
        """Append a SPAN."""
        self.add(EventKind.SPAN, begin, duration, name=name, **columns)

    def marker(self, name: str, begin: int, **columns: Any) -> None:
        """Append a MARKER."""
        self.add(EventKind.MARKER, begin, name=name, **columns)

    def batches(self, size: int = 1_000) -> list[EventBatch]:
        """The events in batches of so many."""
        parts = [self.rows[first : first + size] for first in range(0, len(self.rows), size)]
        return [EventBatch(**{name: [row[name] for row in part] for name in COLUMNS}) for part in parts]

    def write(self, make: Any, path: Path, size: int = 1_000) -> Path:
        """Export it with `make(destination)`, in place as a tracker does: batch by batch. The path."""
        exporter: Exporter = make(FileDestination(path, atomic=False))
        exporter.begin(self.info, self.tables)
        for batch in self.batches(size):
            exporter.write(batch)
        exporter.end(self.end)
        return path


def two_steps() -> Made:
    """Two steps of a model with one nested module; every kind of event, counters, a late peak."""
    made = Made(
        pid=4000, rank=0, command_line=("train.py", "--lr", "0.1"), host="node-a", torch_version="2.13"
    )
    allocated = 1000
    for step in range(2):
        at = 100_000 * step
        common = {"thread": "MainThread", "step": step, "device": 0, "rank": 0}
        made.marker("step", at, **common)
        for number, (begin, size) in enumerate(((1_500, 512), (5_000, -256), (9_000, 2_048))):
            allocated += size
            common |= {"phase": Phase.FORWARD}
            made.add(
                EventKind.ALLOCATION if size > 0 else EventKind.RELEASE,
                at + begin + 10,
                size_bytes=abs(size),
                allocated_bytes=allocated,
                address=4096 * (number + 1),
                **common,
            )
            made.operator(
                ("aten.addmm.default", "aten.relu_.default", "prims::sum")[number],
                at + begin,
                2_000,
                module="net.fc",
                size_bytes=size,
                allocated_bytes=allocated,
                reserved_bytes=1 << 20,
                **common,
            )
        made.span("Linear", at + 1_200, 10_000, module="net.fc", **common)
        made.span("Net", at + 1_100, 10_500, module="Net", **common)
        made.span("forward", at + 1_000, 11_000, **common)
        made.span("validate", at + 13_000, 500, **common)
        made.span("step", at + 500, 20_000, **common)
    made.marker("peak", 111_000, device=0, rank=0, allocated_bytes=allocated)
    made.end = RecordingEnd(warnings=("two things are missing",), dropped_events=2, alloc_retries=0)
    return made
