"""Tensor lifetimes of one place in a Perfetto trace: bars from allocation to release, the largest on top."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.frames import own_code, parse_frame
from memexport.analysis.places import Place
from memexport.exporters import _titles
from memexport.exporters._flamegraph import UNATTRIBUTED, category_name
from memexport.exporters._lifetimes import Chart, Edges, SizeFloor
from memexport.exporters._perfetto_bars import Bars
from memexport.exporters._perfetto_interning import Interning
from memexport.exporters._perfetto_tracks import Tracks
from memexport.exporters._residence import Residence
from memexport.model import Category, Tables

_BEFORE: Final = "tensors from before"
"""Storages that lived before the recording, mostly parameters: on a chart of their own, because most are
never released and would push all others down."""

_DURING: Final = "tensor lifetimes"
# The UI lays the bars of a chart out by their begins, so the large ones come first only in charts of their
# own; charts are ordered by name.
_LEAST_BYTES: Final = (2**30, 2**26, 2**22, 2**18)
_SIZES: Final = ("1: ≥ 1 GiB", "2: ≥ 64 MiB", "3: ≥ 4 MiB", "4: ≥ 256 KiB", "5: < 256 KiB")
_BEFORE_CLASS: Final = len(_SIZES)
_FROM_BEFORE: Final = "allocated before recording"

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class LifetimeCharts:
    """Draws the lifetimes of one place.

    Attributes:
        floor: which storages are large enough.
    """

    def __init__(
        self, place: Place, tables: Tables, interning: Interning, tracks: Tracks, least_bytes: int | None
    ) -> None:
        self.floor = SizeFloor(least_bytes)
        self._place = place
        self._tables = tables
        self._interning = interning
        self._tracks = tracks
        self._device = tracks.device_name(place.device)
        self._charts = [Chart() for _ in range(_BEFORE_CLASS + 1)]
        self._lanes = [np.empty(0, np.int64) for _ in self._charts]
        self._code_names: dict[int, int] = {}

    def bars(self, residence: Residence) -> Bars | None:
        """What one more batch draws; None for nothing."""
        born = residence.lifetimes.born.columns
        drawn = self.floor.admit(born["size_bytes"], residence.allocated_bytes)
        before = _from_before(residence)
        size_class = len(_LEAST_BYTES) - np.searchsorted(_LEAST_BYTES[::-1], born["size_bytes"], side="right")
        size_class[before] = _BEFORE_CLASS
        changed: list[Edges] = []
        tracks: list[Ints] = []
        for number, chart in enumerate(self._charts):
            edges = chart.add(residence, drawn & (size_class == number))
            if edges is not None and len(edges):
                changed.append(edges)
                tracks.append(self._track(number, edges.lane))
        return self._bars(Edges.concat(changed), np.concatenate(tracks)) if changed else None

    def _bars(self, edges: Edges, track: Ints) -> Bars:
        return Bars(
            time_ns=edges.time_ns,
            begins=edges.begins,
            track=track,
            name=self._names(edges),
            size_bytes=edges.size_bytes,
            module=self._interning.texts(edges.module),
            category=self._category_texts(edges.category),
        )

    def _track(self, chart: int, lane: Ints) -> Ints:
        known, wanted = self._lanes[chart], int(lane.max()) + 1
        if wanted > len(known):
            name = self._chart_name(chart)
            new = [self._tracks.lifetimes(self._place, name, number) for number in range(len(known), wanted)]
            known = self._lanes[chart] = np.concatenate((known, new))
        return known[lane]

    def _chart_name(self, chart: int) -> str:
        if chart == _BEFORE_CLASS:
            return f"{_BEFORE} {self._device}"
        return f"{_DURING} {self._device}, {_SIZES[chart]}"

    def _names(self, edges: Edges) -> Ints:
        """Interned: the operator, else where in the program, else the category."""
        names = np.zeros(len(edges), np.int64)
        by_operator = edges.begins & (edges.name != 0)
        by_code = edges.begins & ~by_operator & (edges.stack != 0)
        neither = edges.begins & ~by_operator & ~by_code
        if by_operator.any():
            names[by_operator] = self._interning.names(_titles.OPERATOR, edges.name[by_operator])
        if by_code.any():
            names[by_code] = [self._code_name(stack) for stack in edges.stack[by_code].tolist()]
        if neither.any():
            names[neither] = self._category_names(edges.category[neither])
        return names

    def _code_name(self, stack: int) -> int:
        """Interned: the innermost frame of the user's own code."""
        if stack not in self._code_names:
            frames = [parse_frame(self._tables.strings[frame]) for frame in self._tables.stacks.frames(stack)]
            self._code_names[stack] = self._interning.name(own_code(frames, 1)[0])
        return self._code_names[stack]

    def _category_names(self, category: Ints) -> Ints:
        interned = np.zeros(256, np.int64)
        for number in np.flatnonzero(np.bincount(category)).tolist():
            text = category_name(number)
            interned[number] = self._interning.name(_FROM_BEFORE if text == UNATTRIBUTED else text)
        return interned[category]

    def _category_texts(self, category: Ints) -> Ints:
        interned = np.zeros(256, np.int64)
        for number in np.flatnonzero(np.bincount(category)).tolist():
            if number != Category.UNKNOWN:
                interned[number] = self._interning.text(category_name(number))
        return interned[category]


def _from_before(residence: Residence) -> Mask:
    """Which storages born in the batch lived already when the recording began, or were made out of its sight.

    Those have no operator; but nor have those of a source that knows none.
    """
    born = residence.lifetimes.born.columns
    known = ~np.isin(born["category"], (Category.UNKNOWN, Category.UNATTRIBUTED))
    before: Mask = (born["name"] == 0) & ((residence.lifetimes.born_start < residence.start) | known)
    return before
