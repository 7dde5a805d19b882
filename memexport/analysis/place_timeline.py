"""One place through a recording, folded into bins of time, with what was live at its highest moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.group_bytes import GroupBytes, GroupChanges
from memexport.analysis.moments import Moment, WindowMoments, moment_of
from memexport.analysis.operator_names import OperatorNames
from memexport.analysis.time_bins import SAMPLE, Samples, TimeBins, unknown_samples
from memexport.model import UNKNOWN_SIZE, Category, Column, EventBatch, EventKind, Tables

LISTED_AT_PEAK: Final = 4_000
"""How many groups the peak lists: a model of thousands of modules still shows whole."""

_SIGN: Final[dict[int, int]] = {EventKind.ALLOCATION: 1, EventKind.OPERATOR: 1, EventKind.RELEASE: -1}


@dataclass(frozen=True)
class _Stretch:
    """The events of one place in one batch.

    Attributes:
        positions: theirs in the batch, ascending.
        time_ns: when each ended.
        allocated_bytes: what is taken for the counter after each.
        reserved_bytes: likewise; −1 where it is not known.
        changes: what they changed.
        operators: finds their names.
    """

    batch: EventBatch
    positions: Column
    time_ns: Column
    allocated_bytes: Column
    reserved_bytes: Column
    changes: GroupChanges
    operators: OperatorNames

    def samples(self, rows: Column) -> Samples:
        """The moments right after these events of the stretch."""
        at = self.positions[rows]
        samples = np.empty(len(rows), SAMPLE)
        samples["allocated_bytes"] = self.allocated_bytes[rows]
        samples["reserved_bytes"] = self.reserved_bytes[rows]
        samples["time_ns"] = self.time_ns[rows]
        samples["name"] = self.operators.of(self.batch, at)
        for column in ("module", "phase", "step"):
            samples[column] = getattr(self.batch, column)[at]
        samples["categories"] = self._categories(at, samples["allocated_bytes"])
        return samples

    def moment(self, row: int) -> Moment:
        """What was live right after this event of the stretch."""
        live = next(self.changes.rows_after(self.positions[[row]]))
        return moment_of(self.samples(np.array([row]))[0], live, LISTED_AT_PEAK)

    def moment_before(self, row: int, allocated_bytes: int) -> Moment:
        """What was live right before it, when the counter was this high."""
        at = self.positions[[row]] - 1
        sample = unknown_samples(1)
        sample["allocated_bytes"], sample["time_ns"] = allocated_bytes, self.time_ns[row]
        sample["categories"] = self._categories(at, sample["allocated_bytes"])
        return moment_of(sample[0], next(self.changes.rows_after(at)), LISTED_AT_PEAK)

    def _categories(self, positions: Column, allocated: Column) -> Column:
        """Bytes by category that come to `allocated`: what nothing explains is UNATTRIBUTED."""
        rows = self.changes.by_category().after(positions)
        rows[:, Category.UNATTRIBUTED] += np.maximum(allocated - rows.sum(axis=1), 0)
        return rows


class PlaceTimeline:
    """Folds the events of one place; `TimelineFold` says where the start is.

    `allocated` is the device's counter, and the sum of what is tracked as long as that is unknown.

    Attributes:
        bins: the place over time.
        windows: what was live at the highest moments.
        groups: what groups there are.
        peak: the moment at which `allocated` first reached its peak; None before the first event.
    """

    def __init__(self, tables: Tables) -> None:
        self.bins = TimeBins()
        self.windows = WindowMoments()
        self.groups = GroupBytes(tables)
        self._operators = OperatorNames(tables.strings)
        self.peak: Moment | None = None
        self._allocated = -1
        self._reserved = -1

    def start(self, time_ns: int) -> None:
        """Forget the moments before this time, and start at the counters that were known last."""
        self.bins.clear()
        self.windows.clear()
        self.peak = None
        if self._allocated >= 0:
            known = EventBatch(kind=[EventKind.SAMPLE], allocated_bytes=self._allocated)
            self.add(known, np.zeros(1, np.intp), np.array([time_ns]))

    def add(self, batch: EventBatch, positions: Column, time_ns: Column) -> None:
        """Take the events at these ascending positions, all of this place, which ended at these times ≥ 0."""
        if not len(positions):
            return
        given = batch.allocated_bytes[positions]
        changes = self.groups.add(batch, positions)
        allocated = _carried_on(given, self._allocated)
        reserved = _carried_on(batch.reserved_bytes[positions], self._reserved)
        if (unknown := allocated < 0).any():
            tracked = changes.by_category().totals_after(positions)
            allocated = np.where(unknown, tracked, allocated)
        stretch = _Stretch(batch, positions, time_ns, allocated, reserved, changes, self._operators)
        self.windows.double(self.bins.room_for(int(time_ns.max())))
        if self._allocated < 0 and (given >= 0).any():
            self._begin_at(int(np.argmax(given >= 0)), stretch)
        else:
            self._take_peak(stretch)
        self._fold(stretch)
        self._allocated = _last_known(given, self._allocated)
        self._reserved = int(reserved[-1])

    def _begin_at(self, first: int, stretch: _Stretch) -> None:
        """The counter becomes known at this event: what was only tracked until then makes no peak."""
        self.peak = None
        value = int(stretch.allocated_bytes[first])
        before = value - _change(stretch.batch, int(stretch.positions[first]))
        if before > value:
            # It gave bytes back, so the moment before it was higher.
            self.peak = stretch.moment_before(first, before)
            self.bins.note(self.peak.sample)
            self.windows.note(self.peak)
        self._take_peak(stretch, first)

    def _take_peak(self, stretch: _Stretch, first: int = 0) -> None:
        row = first + int(stretch.allocated_bytes[first:].argmax())
        if self.peak is None or int(stretch.allocated_bytes[row]) > self.peak.allocated_bytes:
            self.peak = stretch.moment(row)

    def _fold(self, stretch: _Stretch) -> None:
        touched = self.bins.touched(stretch.time_ns, stretch.allocated_bytes, stretch.reserved_bytes)
        samples = stretch.samples(np.concatenate((touched.highest, touched.last)))
        self.bins.take(touched, samples)
        self.windows.take(touched, samples, stretch.positions, stretch.changes)


def _change(batch: EventBatch, event: int) -> int:
    """What the event adds to the allocated bytes; 0 if that is not known."""
    size = int(batch.size_bytes[event])
    return 0 if size == UNKNOWN_SIZE else size * _SIGN.get(int(batch.kind[event]), 0)


def _last_known(values: Column, before: int) -> int:
    known = values[values >= 0]
    return int(known[-1]) if len(known) else before


def _carried_on(values: Column, before: int) -> Column:
    """The counter with its unknown values replaced by the last known one; −1 where none is."""
    if values.min(initial=0) >= 0:
        return values
    last = np.maximum.accumulate(np.where(values >= 0, np.arange(len(values)), -1))
    return np.where(last >= 0, values[last], before)
