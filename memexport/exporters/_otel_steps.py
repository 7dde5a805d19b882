"""Folds a running recording into its training steps: when each was, and the memory it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.pauses import Pauses
from memexport.analysis.places import split_by_place
from memexport.exporters._otel_device import Level
from memexport.model import EventBatch, EventKind, Phase, RecordingInfo, Tables

_PHASES: Final = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_MOST_PHASES: Final = 256
"""Of one step: a program that never says where a step ends must not fill the memory."""


@dataclass(frozen=True)
class Use:
    """Bytes allocated on a device when a step began, at most during it, and when it ended; −1: not known."""

    start: int
    peak: int
    end: int


@dataclass(frozen=True)
class PhaseRun:
    """A forward, backward or optimizer step."""

    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class TrainingStep:
    """A step that is over; times in Unix nanoseconds.

    Attributes:
        parent: the traceparent of the application's span that the step belongs to, None if there is none.
        devices: by name, those of which anything is known; none if the step was not recorded in detail.
        phases: the first 256, in the order in which they ended.
    """

    number: int
    begin_ns: int
    end_ns: int
    parent: str | None
    devices: Mapping[str, Use]
    phases: tuple[PhaseRun, ...]


class StepFold:
    """Takes the batches of one process in order."""

    def __init__(self, info: RecordingInfo, tables: Tables) -> None:
        self._devices = info.devices
        self._strings = tables.strings
        self._levels: dict[int, Level] = {}
        self._starts: dict[int, int] = {}
        self._phases: list[PhaseRun] = []
        self._parent = 0
        self._pauses = Pauses(tables.strings)

    def add(self, batch: EventBatch) -> list[TrainingStep]:
        """Take the next batch; the steps that end in it."""
        step, start = self._strings.find("step"), self._strings.find("start")
        in_pause, resumed = self._pauses.read(batch)
        is_span, is_marker = batch.kind == EventKind.SPAN, batch.kind == EventKind.MARKER
        ends = is_span & (batch.name == step) & (batch.step >= 0) & (batch.duration_ns >= 0)
        steps, begin = [], 0
        begins = ends | (is_marker & (batch.name == start))
        begins[resumed] = True
        for end in np.flatnonzero(begins).tolist():
            self._go_on(batch.select(slice(begin, end)))
            if ends[end]:
                steps.append(self._step(batch, end, in_pause=bool(in_pause[end])))
            self._begin_step()
            begin = end
        self._go_on(batch.select(slice(begin, None)))
        return steps

    def _go_on(self, events: EventBatch) -> None:
        """Take events of one step."""
        for place, positions in split_by_place(events):
            # Markers repeat what their neighbours say, and "peak" comes when all is over.
            positions = positions[events.kind[positions] != EventKind.MARKER]
            self._levels.setdefault(place.device, Level()).add(events.allocated_bytes[positions])
        of_phase = (events.kind == EventKind.SPAN) & (events.module == 0) & np.isin(events.phase, _PHASES)
        for row in np.flatnonzero(of_phase)[: max(0, _MOST_PHASES - len(self._phases))].tolist():
            began, name = int(events.time_unix_ns[row]), Phase(int(events.phase[row])).name.lower()
            self._phases.append(PhaseRun(name, began, began + int(events.duration_ns[row])))
        # The MARKER "step" that these events begin with is that of the step before.
        is_marker = (events.kind == EventKind.MARKER) & (events.device < 0)
        markers = events.inputs[is_marker & (events.name != self._strings.find("step"))]
        if len(markers):
            self._parent = int(markers[-1])

    def _step(self, batch: EventBatch, row: int, *, in_pause: bool) -> TrainingStep:
        began = int(batch.time_unix_ns[row])
        # Who ends a step says so in a MARKER right after it; nobody did if it was still open at the end.
        last = row + 1 < len(batch) and batch.kind[row + 1] == EventKind.MARKER and batch.device[row + 1] < 0
        parent = int(batch.inputs[row + 1]) if last else self._parent
        uses = {} if in_pause else dict(self._uses())
        return TrainingStep(
            number=int(batch.step[row]),
            begin_ns=began,
            end_ns=began + int(batch.duration_ns[row]),
            parent=self._strings.get(parent),
            devices=uses,
            phases=tuple(self._phases),
        )

    def _uses(self) -> Iterator[tuple[str, Use]]:
        for index, level in sorted(self._levels.items()):
            if level.now >= 0:
                yield str(self._devices[index]), Use(self._starts.get(index, -1), level.peak, level.now)

    def _begin_step(self) -> None:
        self._phases, self._parent = [], 0
        for index, level in self._levels.items():
            level.restart()
            self._starts[index] = level.now
