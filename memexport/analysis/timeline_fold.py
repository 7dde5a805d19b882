"""Folds a recording of any length into its timeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise, zip_longest
from typing import Final

import numpy as np

from memexport.analysis.moments import Moment
from memexport.analysis.palette import CATEGORY_COLOURS
from memexport.analysis.place_fold import phase_name
from memexport.analysis.place_timeline import PlaceTimeline
from memexport.analysis.places import Place, place_names, split_by_place
from memexport.analysis.time_bins import BINS, Samples, unknown_samples
from memexport.analysis.timeline import DeviceTimeline, LiveMoment, Mark, Timeline
from memexport.model import Column, EventBatch, EventKind, RecordingEnd, RecordingInfo, StringTable, Tables

MAX_MARKS: Final = 500

_UNMARKED: Final = frozenset({"start", "peak", "step"})
"""Markers that say nothing that a picture does not show anyway."""

_OUT_OF_MEMORY: Final = frozenset({"oom", "out of memory"})


class TimelineFold:
    """Takes the batches of a recording in order; `result` may be asked for at any time, and adding go on.

    Memory grows with what is live at once and with distinct strings, not with the number of events.
    """

    def __init__(self, info: RecordingInfo, tables: Tables) -> None:
        self._info = info
        self._tables = tables
        self._places: dict[Place, PlaceTimeline] = {}
        self._started: dict[Place, int] = {}
        self._started_ranks: set[int] = set()
        self._origin_ns: int | None = None
        self._end_ns = 0
        self._events = 0
        self._marks: list[Mark] = []
        self._marks_left_out = 0

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        if not len(batch):
            return
        if self._origin_ns is None:
            self._origin_ns = int(batch.time_unix_ns.min())
        self._events += len(batch)
        for piece, begins_with_start in self._cut_at_starts(batch):
            time_ns = self._times(piece)
            if begins_with_start:
                self._start(Place(int(piece.rank[0]), int(piece.device[0])), int(time_ns[0]))
            for place, positions in split_by_place(piece):
                self._place(place).add(piece, positions, time_ns[positions])

    def result(self, end: RecordingEnd) -> Timeline:
        """What has been added so far comes to."""
        places = {place: fold for place, fold in self._places.items() if fold.peak is not None}
        # A marker or a step may end long after the last event of any place.
        shift = max([fold.bins.shift for fold in places.values()] + [(self._end_ns // BINS).bit_length()])
        bins = (self._end_ns >> shift) + 1 if places else 0
        zero = self._zero_ns()
        return Timeline(
            info=self._info,
            first_ns=zero,
            bin_ns=1 << shift,
            bins=bins,
            events=self._events,
            devices=tuple(
                _Result(places[place], shift, bins, zero, self._tables.strings).device(name)
                for place, name in place_names(list(places), self._info).items()
            ),
            marks=tuple(
                dataclasses.replace(mark, time_ns=mark.time_ns + zero)
                for mark in sorted(self._marks, key=lambda mark: mark.time_ns)
            ),
            marks_left_out=self._marks_left_out,
            warnings=end.warnings,
            strings=self._tables.strings,
        )

    def _zero_ns(self) -> int:
        """How long after the recording's start the first bin begins; event numbers count from the first."""
        if self._origin_ns is None:
            return 0
        if self._info.clock == "index":
            return self._origin_ns
        start = self._info.start_time_unix_ns
        return max(0, self._origin_ns - start) if start is not None else 0

    def _times(self, batch: EventBatch) -> Column:
        """When each event ended, from the first bin on."""
        ends: Column = batch.time_unix_ns - (self._origin_ns or 0)
        # Where times count events, durations do not.
        if self._info.clock == "unix":
            ends = ends + np.maximum(batch.duration_ns, 0)
        ends = np.maximum(ends, 0)
        self._end_ns = max(self._end_ns, int(ends.max()))
        return ends

    def _place(self, place: Place) -> PlaceTimeline:
        fold = self._places.get(place)
        if fold is None:
            fold = self._places[place] = PlaceTimeline(self._tables)
        return fold

    def _start(self, marker: Place, time_ns: int) -> None:
        """Start every place that a MARKER "start" of this rank and device concerns, as a summary does."""
        if self._started_ranks & {marker.rank, -1}:
            return
        if marker.device >= 0:
            self._place(marker)
        else:
            self._started_ranks.add(marker.rank)
        for place, fold in self._places.items():
            # The marker of another device counts until this one's own comes.
            weight = 2 if marker.device in (-1, place.device) else 1
            if marker.rank in (-1, place.rank) and weight > self._started.get(place, 0):
                self._started[place] = weight
                fold.start(time_ns)

    def _cut_at_starts(self, batch: EventBatch) -> Iterator[tuple[EventBatch, bool]]:
        """The batch in pieces, each but the first beginning with a MARKER "start", and whether it does.

        Without the MARKER "peak", which stands after everything else and repeats it.
        """
        if batch.kind.max() < EventKind.MARKER:
            yield batch, False
            return
        rows = np.flatnonzero(batch.kind == EventKind.MARKER)
        names = [self._tables.strings.get(name) for name in batch.name[rows].tolist()]
        self._mark(batch, rows, names)
        cuts = [row for row, name in zip(rows.tolist(), names, strict=True) if name == "start"]
        peaks = [row for row, name in zip(rows.tolist(), names, strict=True) if name == "peak"]
        keep = np.delete(np.arange(len(batch)), peaks)
        bounds = [0, *np.searchsorted(keep, cuts).tolist(), len(keep)]
        starts = {int(bound) for bound in bounds[1:-1]}
        for begin, stop in pairwise(bounds):
            if stop > begin:
                yield batch.select(keep[begin:stop] if peaks else slice(begin, stop)), begin in starts

    def _mark(self, batch: EventBatch, rows: Column, names: list[str | None]) -> None:
        origin = self._origin_ns or 0
        for row, name in zip(rows.tolist(), names, strict=True):
            if name is None or name in _UNMARKED:
                continue
            if len(self._marks) == MAX_MARKS:
                self._marks_left_out += 1
            else:
                time_ns = max(0, int(batch.time_unix_ns[row]) - origin)
                self._marks.append(Mark(time_ns, name, name in _OUT_OF_MEMORY))


class _Result:
    """What the fold of a place comes to, in bins of a width that all places share."""

    def __init__(
        self, fold: PlaceTimeline, shift: int, bins: int, first_ns: int, strings: StringTable
    ) -> None:
        self._fold = fold
        self._first_ns = first_ns
        self._strings = strings
        self._numbers: dict[int, int] = {}
        fold.windows.double(fold.bins.widen(shift))
        self._bins, self._count = fold.bins, bins

    def device(self, name: str) -> DeviceTimeline:
        """The device under this name."""
        if self._fold.peak is None:
            raise ValueError("nothing is known of this place")
        samples, is_held = self._samples()
        highest = samples["categories"].max(axis=0, initial=0)
        peak, moments = self._moment(self._fold.peak), tuple(map(self._moment, self._moments()))
        return DeviceTimeline(
            name=name,
            samples=samples,
            is_held=is_held,
            lowest_bytes=self._or_held(self._bins.lowest_bytes, samples["allocated_bytes"], is_held),
            reserved_bytes=self._or_held(self._bins.reserved_bytes, samples["reserved_bytes"], is_held),
            categories=tuple(category for category in CATEGORY_COLOURS if highest[category] > 0),
            peak=peak,
            moments=moments,
            groups=tuple(map(self._fold.groups.group, self._numbers)),
        )

    def _samples(self) -> tuple[Samples, Column]:
        """The highest moment of each bin, and which bins have none of their own."""
        high, last = self._bins.high[: self._count], self._bins.last[: self._count]
        known = high["allocated_bytes"] >= 0
        before = np.maximum.accumulate(np.where(known, np.arange(self._count), -1))
        samples: Samples = np.where(known, high, last[before])
        samples[before < 0] = unknown_samples(1)[0]
        samples["time_ns"] += self._first_ns
        return samples, ~known

    def _or_held(self, values: Column, held: Column, is_held: Column) -> Column:
        return np.where(is_held, held, values[: self._count])

    def _moments(self) -> Iterator[Moment]:
        """The high of each window, and the last of one that none follows upon."""
        windows = self._fold.windows
        for high, last, following in zip_longest(windows.high, windows.last, windows.high[1:]):
            if high is not None:
                yield high
                if (
                    last is not None
                    and following is None
                    and last.sample["time_ns"] != high.sample["time_ns"]
                ):
                    yield last

    def _moment(self, moment: Moment) -> LiveMoment:
        sample, string = moment.sample, self._strings.get
        reserved = int(sample["reserved_bytes"])
        numbers = (self._numbers.setdefault(group, len(self._numbers)) for group in moment.groups.tolist())
        return LiveMoment(
            time_ns=int(sample["time_ns"]) + self._first_ns,
            allocated_bytes=int(sample["allocated_bytes"]),
            reserved_bytes=reserved if reserved >= 0 else None,
            operator=string(int(sample["name"])),
            module=string(int(sample["module"])),
            phase=phase_name(int(sample["phase"])),
            step=int(sample["step"]),
            groups=tuple(zip(numbers, moment.bytes.tolist(), strict=True)),
            others_bytes=moment.others_bytes,
            unexplained_bytes=moment.unexplained_bytes,
        )
