"""From the raw log of a capture to snapshots: now, at the peak, and at the marks of modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch

from memexport.analysis.category_bytes import CATEGORIES, ByteChanges, CategoryBytes
from memexport.analysis.maxima import first_maxima
from memexport.compat._categories import RefTypes, taken_bytes_of_each
from memexport.compat._module_stats import ModuleStats, State, States, Taken
from memexport.compat._snapshots import Snapshot, snapshot_of
from memexport.model import Column, EventBatch
from memexport.tracker import rows
from memexport.tracker.chunk import Rows
from memexport.tracker.rows import Labels

RESTART: Final = -1
"""The state of the mark that forgets the peak."""


class _Pass(NamedTuple):
    """A module's forward or backward, or what of it is in one chunk: the rows from `begin` up to `end`."""

    peak: Taken
    begin: int
    end: int = -1


class SnapshotFold:
    """Takes chunks of the log in order. A mark is a MARKER row: the number of a `ModuleStats`, and a state.

    A peak is looked for after each operator, as torch's trackers do.

    Args:
        labels: what the rows stand for.
        devices: by their index in the rows; may grow.
        categories: those of the snapshots.
        states: those of modules.
        stats: by number, those that are still wanted.
    """

    def __init__(
        self,
        labels: Labels,
        devices: Sequence[torch.device],
        categories: RefTypes,
        states: States,
        stats: Mapping[int, ModuleStats],
    ) -> None:
        self._labels = labels
        self._devices = devices
        self._categories = categories
        self._states = states
        self._stats = stats
        self._bytes: list[CategoryBytes] = []
        self._peaks: list[Column] = []
        self._open: dict[tuple[int, State], _Pass] = {}

    def current(self) -> Snapshot:
        """What is live after the chunks that were added."""
        return self._snapshot([one.now() for one in self._bytes])

    def peak(self) -> Snapshot:
        """What was live on each device at its peak."""
        return self._snapshot(self._peaks)

    def _snapshot(self, by_device: Sequence[Column]) -> Snapshot:
        return snapshot_of(by_device, self._devices, self._categories.members)

    def add(self, chunk: bytes) -> None:
        """Take the next whole rows."""
        parsed = Rows.parse(chunk, self._labels)
        changes = self._changes(parsed)
        operators = np.flatnonzero((parsed.kind == rows.OPERATOR) | (parsed.kind == rows.IGNORED))
        marks = np.flatnonzero(parsed.kind == rows.MARKER)
        passes = self._read_marks(parsed, marks, changes)
        restarts = marks[parsed.second[marks] == RESTART]
        for device, of_device in enumerate(changes):
            totals = of_device.totals_after(operators)
            self._raise_peak(device, of_device, operators, totals, restarts)
            _raise_peaks(passes, device, of_device, operators, totals)

    def _changes(self, parsed: Rows) -> list[ByteChanges]:
        """What changed the bytes of each device."""
        moves = np.isin(parsed.kind, (rows.ALLOCATION, rows.RELEASE, rows.CATEGORY))
        highest = int(parsed.device[moves].max(initial=0))
        while len(self._bytes) <= highest:
            self._bytes.append(CategoryBytes())
            self._peaks.append(np.zeros(CATEGORIES, np.int64))
        events = self._events(parsed)
        return [
            self._bytes[device].add(
                self._taken(events, device), np.flatnonzero(moves & (parsed.device == device))
            )
            for device in range(len(self._bytes))
        ]

    def _events(self, parsed: Rows) -> EventBatch:
        """The rows as events whose category is a place among the tracker's."""
        claimed = np.array(self._labels.categories, np.uint8)[parsed.label]
        return EventBatch(
            # A claim says anew what is there.
            kind=np.where(parsed.kind == rows.CATEGORY, np.uint8(rows.ALLOCATION), parsed.kind),
            category=self._categories.places(claimed, parsed.phase),
            size_bytes=parsed.first,
            address=parsed.second.view(np.uint64),
        )

    def _taken(self, events: EventBatch, device: int) -> EventBatch:
        type_ = self._devices[device].type
        if type_ != "cuda":
            return events
        columns = events.columns() | {"size_bytes": taken_bytes_of_each(events.size_bytes, type_)}
        return EventBatch(**columns)

    def _read_marks(self, parsed: Rows, marks: Column, changes: Sequence[ByteChanges]) -> list[_Pass]:
        """Give the modules their snapshots; the passes that ran in this chunk."""
        snapshots = np.stack([one.after(marks) for one in changes], axis=1)
        passes: list[_Pass] = []
        numbers, places = parsed.first[marks].tolist(), parsed.second[marks].tolist()
        for row, number, place, snapshot in zip(marks.tolist(), numbers, places, snapshots, strict=True):
            stats = self._stats.get(number)
            if stats is None or place == RESTART:
                continue
            state = self._states.members[place]
            if ended := self._states.peak_until.get(state):
                self._close(passes, number, ended, row)
            if begun := self._states.peak_from.get(state):
                self._close(passes, number, begun, row)
                self._open[number, begun] = _Pass(stats.begin_peak(begun, snapshot), row)
            stats.add(state, snapshot)
        self._go_on(passes, len(parsed))
        return passes

    def _close(self, passes: list[_Pass], number: int, peak: State, row: int) -> None:
        ended = self._open.pop((number, peak), None)
        if ended is not None:
            passes.append(ended._replace(end=row))

    def _go_on(self, passes: list[_Pass], end: int) -> None:
        """What is not over when the chunk is; what nobody wants to know any more is left out."""
        wanted = {key: one for key, one in self._open.items() if key[0] in self._stats}
        passes += [one._replace(end=end) for one in wanted.values()]
        self._open = {key: one._replace(begin=0) for key, one in wanted.items()}

    def _raise_peak(
        self, device: int, changes: ByteChanges, operators: Column, totals: Column, restarts: Column
    ) -> None:
        if len(restarts):
            self._peaks[device] = changes.after(restarts[-1:])[0]
            since = np.searchsorted(operators, restarts[-1])
            operators, totals = operators[since:], totals[since:]
        if len(totals) and totals.max() > self._peaks[device].sum():
            at = int(totals.argmax())
            self._peaks[device] = changes.after(operators[at : at + 1])[0]


def _raise_peaks(
    passes: Sequence[_Pass], device: int, changes: ByteChanges, operators: Column, totals: Column
) -> None:
    """Give passes what was on a device at the most while they ran in this chunk."""
    if not len(operators):
        return
    bounds = np.array([(one.begin, one.end) for one in passes], np.int64).reshape(-1, 2)
    begins, ends = np.searchsorted(operators, bounds).T
    highest = first_maxima(totals, begins, ends)
    rows_there = changes.after(operators[highest])
    for one, index, row in zip(passes, highest.tolist(), rows_there, strict=True):
        if index >= 0:
            one.peak.raise_to(device, row)
