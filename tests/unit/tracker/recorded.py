"""Records what a tracker sees into memory, and gives it back as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

import memexport
from memexport.model import Category, EventBatch, EventKind, Phase, RecordingEnd, RecordingInfo, Tables


class CollectingExporter:
    """Keeps every batch."""

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []
        self.finished: RecordingEnd | None = None

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        self.info, self.tables = info, tables

    def write(self, batch: EventBatch) -> None:
        self.batches.append(batch)

    def end(self, end: RecordingEnd) -> None:
        self.finished = end

    def abort(self) -> None:
        pass

    def events(self) -> list[SimpleNamespace]:
        """Every event, its ids and enums resolved; nulls are None, `device` is its name."""
        columns = EventBatch.concat(self.batches).columns()
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [self._event(dict(zip(columns, row, strict=True))) for row in rows]

    def _event(self, values: dict[str, Any]) -> SimpleNamespace:
        strings = self.tables.strings
        for name in ("name", "module", "thread"):
            values[name] = strings.get(values[name])
        values["kind"] = EventKind(values["kind"])
        values["phase"] = Phase(values["phase"])
        values["category"] = Category(values["category"])
        values["device"] = str(self.info.devices[values["device"]]) if values["device"] >= 0 else None
        return SimpleNamespace(**values)


def record(
    work: Callable[[memexport.Tracker], Any],
    *modules: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[SimpleNamespace]:
    """What a tracker of these modules records while `work` runs."""
    exporter = CollectingExporter()
    with memexport.Tracker(*modules, optimizer=optimizer, exporters=[exporter]) as tracker:
        work(tracker)
    return exporter.events()


def since_start(events: list[SimpleNamespace]) -> list[SimpleNamespace]:
    """What came after the MARKER "start": without what lived before, in this process of many tests."""
    start = next(i for i, e in enumerate(events) if e.kind is EventKind.MARKER and e.name == "start")
    return events[start + 1 :]


def operators(events: list[SimpleNamespace]) -> list[SimpleNamespace]:
    """The operators among them."""
    return [event for event in events if event.kind is EventKind.OPERATOR]
