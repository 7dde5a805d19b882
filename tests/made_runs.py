"""Small recordings of training runs, laid out by hand: a line for each thing that happens."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from memexport.analysis.step_uses import StepUseFold
from memexport.analysis.summary import Summary, SummaryFold
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.model import (
    COLUMNS,
    NULLS,
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

START_NS = 1_770_000_000_000_000_000


class Run:
    """A run on one device; each call is one event, a microsecond after the one before.

    `allocated` follows what is allocated and released, unless `counted` is False.
    """

    def __init__(
        self, device: str = "cpu", *, index: int | None = None, counted: bool = True, **info: Any
    ) -> None:
        self.info = RecordingInfo(
            **{"producer": "test", "start_time_unix_ns": START_NS, "devices": [Device(device, index)], **info}
        )
        self.tables = Tables()
        self.allocated = 0
        self._counted = counted
        self._rows: list[dict[str, Any]] = []
        self._step = 0
        self._began_ns = START_NS
        self._next_address = 4096
        self._sizes: dict[int, tuple[int, Category]] = {}

    def allocate(
        self,
        size: int,
        category: Category = Category.ACTIVATION,
        *,
        name: str = "aten.mm.default",
        **columns: Any,
    ) -> Run:
        """An ALLOCATION; its address is `last_address`."""
        self.last_address = self._next_address
        self._next_address += 4096
        self._sizes[self.last_address] = (size, category)
        self.allocated += size
        address = self.last_address
        return self._event(
            EventKind.ALLOCATION, name=name, size_bytes=size, category=category, address=address, **columns
        )

    def release(self, address: int) -> Run:
        """The RELEASE of what was allocated there."""
        size, category = self._sizes.pop(address)
        self.allocated -= size
        return self._event(EventKind.RELEASE, size_bytes=size, category=category, address=address)

    def release_all(self) -> Run:
        """Everything that lives, in order."""
        for address in list(self._sizes):
            self.release(address)
        return self

    def more(self, size: int) -> Run:
        """Let the counter rise without an allocation."""
        self.allocated += size
        return self._event(EventKind.SAMPLE)

    def end_step(self, *, marked: bool = True, skipped: int = 0) -> Run:
        """The SPAN of the step, and the MARKER of who ended it; then so many steps are not recorded."""
        begin, now = self._began_ns, self._now()
        step = {"name": "step", "device": -1, "allocated_bytes": -1, "step": self._step}
        self._event(EventKind.SPAN, time_unix_ns=begin, duration_ns=now - begin, **step)
        if marked:
            self._event(EventKind.MARKER, time_unix_ns=now, duration_ns=0, **step)
        self._step += 1 + skipped
        self._began_ns = now
        return self

    def batch(self) -> EventBatch:
        """All of it."""
        columns = {name: [row.get(name, NULLS[name]) for row in self._rows] for name in COLUMNS}
        return EventBatch(**columns)

    def batches(self, cuts: Any = ()) -> list[EventBatch]:
        """The same, cut before these events."""
        whole = self.batch()
        edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(whole)}), len(whole)]
        return [whole.select(slice(a, b)) for a, b in itertools.pairwise(edges)]

    def summary(self, cuts: Any = (), **end: Any) -> Summary:
        """What it comes to."""
        fold = SummaryFold(self.info, self.tables)
        for batch in self.batches(cuts):
            fold.add(batch)
        return fold.result(RecordingEnd(**end))

    def step_uses(self, cuts: Any = ()) -> StepUseFold:
        """Its steps."""
        fold = StepUseFold(self.info, self.tables)
        for batch in self.batches(cuts):
            fold.add(batch)
        return fold

    def save(self, path: Path, **end: Any) -> Path:
        """An archive of it."""
        exporter = ArchiveExporter(FileDestination(path))
        exporter.begin(self.info, self.tables)
        exporter.write(self.batch())
        exporter.end(RecordingEnd(**end))
        return path

    def _event(self, kind: EventKind, **columns: Any) -> Run:
        for name in ("name", "module"):
            if isinstance(columns.get(name), str):
                columns[name] = self.tables.strings.intern(columns[name])
        counter = self.allocated if self._counted else -1
        defaults = {
            "time_unix_ns": self._now(),
            "device": 0,
            "step": self._step,
            "phase": Phase.FORWARD,
            "allocated_bytes": counter,
        }
        self._rows.append({**defaults, "kind": kind, **columns})
        return self

    def _now(self) -> int:
        return START_NS + 1_000 * len(self._rows)
