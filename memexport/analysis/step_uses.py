"""What each step of a recording took: how long it lasted, and how high each device rose in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.places import Place, place_names, split_by_place
from memexport.analysis.step_ends import STEP, StepEnds
from memexport.model import Column, EventBatch, EventKind, RecordingInfo, Tables

_NO_POSITIONS: Final = np.empty(0, np.intp)


@dataclass(frozen=True)
class StepUse:
    """One step on one device; None for what is not known.

    Attributes:
        peak_bytes: allocated at most, what was there when it began included.
    """

    duration_ns: int | None
    peak_bytes: int | None


class StepUseFold:
    """Takes the batches of a recording in order. Memory grows with the number of steps.

    Attributes:
        first_ns: the time of the earliest event; None before the first batch.
    """

    def __init__(self, info: RecordingInfo, tables: Tables) -> None:
        self._info = info
        self._strings = tables.strings
        self._ends = StepEnds(tables.strings)
        self._durations: dict[tuple[int, int], int] = {}
        self._steps: dict[int, list[int]] = {}
        self._levels: dict[Place, _Level] = {}
        self.first_ns: int | None = None

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        if not len(batch):
            return
        first = int(batch.time_unix_ns.min())
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self._add_durations(batch)
        ends = {}
        for rank, positions, is_first in self._ends.read(batch):
            if is_first:
                self._forget(rank)
            ends[rank] = positions
        rows = dict(split_by_place(batch))
        for place in rows:
            known = len(self._steps.get(place.rank, ()))
            self._levels.setdefault(place, _Level(known))
        for place, level in self._levels.items():
            level.add(batch, rows.get(place, _NO_POSITIONS), ends.get(place.rank, _NO_POSITIONS))
        for rank, positions in ends.items():
            self._steps.setdefault(rank, []).extend(batch.step[positions].tolist())

    def result(self) -> Mapping[str, Mapping[int, StepUse]]:
        """By device as a summary names it, then by step, in order."""
        names = place_names(list(self._levels), self._info)
        return {name: dict(self._uses(place)) for place, name in names.items()}

    def _uses(self, place: Place) -> list[tuple[int, StepUse]]:
        level, steps = self._levels[place], self._steps.get(place.rank, [])
        return [
            (step, StepUse(self._durations.get((place.rank, step)), peak if peak >= 0 else None))
            for step, peak in zip(steps, level.peaks, strict=True)
        ]

    def _add_durations(self, batch: EventBatch) -> None:
        step_id = self._strings.find(STEP)
        if step_id is None:
            return
        lasts = (batch.kind == EventKind.SPAN) & (batch.name == step_id) & (batch.duration_ns >= 0)
        for row in np.flatnonzero(lasts).tolist():
            self._durations[int(batch.rank[row]), int(batch.step[row])] = int(batch.duration_ns[row])

    def _forget(self, rank: int) -> None:
        """What was noted up to now was no step."""
        self._steps.pop(rank, None)
        for place, level in self._levels.items():
            if place.rank == rank:
                level.forget_steps()


class _Level:
    """A device's `allocated`: its peak in each step that is over; −1 where it is not known."""

    def __init__(self, steps_before: int) -> None:
        self.peaks = [-1] * steps_before
        self._now = self._peak = -1

    def add(self, batch: EventBatch, positions: Column, ends: Column) -> None:
        """Take the events at these positions, and the ends of steps among them."""
        # Markers repeat what their neighbours say, and "peak" comes when all is over.
        positions = positions[batch.kind[positions] != EventKind.MARKER]
        values = batch.allocated_bytes[positions]
        begin = 0
        for end in np.searchsorted(positions, ends).tolist():
            self._rise(values[begin:end])
            self.peaks.append(self._peak)
            self._peak, begin = self._now, end
        self._rise(values[begin:])

    def forget_steps(self) -> None:
        """What was noted up to now belongs to the step that is still open."""
        self._peak = max(self._peak, *self.peaks, -1)
        self.peaks.clear()

    def _rise(self, values: Column) -> None:
        known = values[values >= 0]
        if len(known):
            self._now = int(known[-1])
            self._peak = max(self._peak, int(known.max()))
