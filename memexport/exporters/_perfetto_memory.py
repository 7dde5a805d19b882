"""What a Perfetto trace shows of single storages: their lifetimes, their categories, and the peak."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.places import Place
from memexport.exporters import _perfetto_packets as packets
from memexport.exporters import _titles
from memexport.exporters._categories import CategoryCounters
from memexport.exporters._counters import HIGHEST_EXACT
from memexport.exporters._flamegraph import UNATTRIBUTED, category_name, stacks
from memexport.exporters._lifetimes import Chart, Edges, SizeFloor
from memexport.exporters._perfetto_bars import Bars, encode_bars
from memexport.exporters._perfetto_heap import HeapProfile
from memexport.exporters._perfetto_interning import Interning
from memexport.exporters._perfetto_tracks import Tracks
from memexport.exporters._residence import Peak, Residence, Residences
from memexport.model import Category, EventBatch, StringTable

DURING: Final = "tensor lifetimes"
BEFORE: Final = "tensors from before"
"""Storages that no operator of the recording made, mostly parameters: on a chart of their own, because most
are never released and would push all others down."""

_FROM_BEFORE: Final = "allocated before recording"

Ints = npt.NDArray[np.int64]


class _PlaceTracks:
    """What is drawn of one place."""

    def __init__(self, lifetimes_bytes: int | None) -> None:
        self.categories = CategoryCounters()
        self.peak = Peak()
        self.charts = {name: Chart() for name in (DURING, BEFORE)}
        self.floor = SizeFloor(lifetimes_bytes)
        self.lanes: dict[str, Ints] = {name: np.empty(0, np.int64) for name in self.charts}


class MemoryTracks:
    """Draws the storages of every place."""

    def __init__(
        self, strings: StringTable, interning: Interning, tracks: Tracks, lifetimes_bytes: int | None
    ) -> None:
        self._strings = strings
        self._interning = interning
        self._tracks = tracks
        self._lifetimes_bytes = lifetimes_bytes
        self._residences = Residences()
        self._places: dict[Place, _PlaceTracks] = {}

    def encode(self, batch: EventBatch, end_ns: Ints) -> Iterator[bytes]:
        """The packets of one more batch."""
        return chain.from_iterable(map(self._encode_place, self._residences.add(batch, end_ns)))

    def encode_peaks(self) -> bytes:
        """A heap dump of each place at its peak, for places of which more than the counter is known."""
        dumps: dict[int, int] = {}
        encoded = b""
        for sequence_id, place in enumerate(self._by_peak(), packets.SEQUENCE_ID + 1):
            peak, live = self._places[place].peak, self._places[place].peak.live()
            if len(live):
                pid = self._tracks.heap(place, dumps.get(place.rank, 0))
                dumps[place.rank] = dumps.get(place.rank, 0) + 1
                name = f"{self._tracks.device_name(place.device)} allocated"
                found = stacks(live, peak.bytes, self._strings)
                encoded += HeapProfile(sequence_id).encode(found, pid, name, peak.time_ns)
        return encoded

    def omitted(self) -> str | None:
        """A sentence on the storages that got no bar; None if all did."""
        floors = [place.floor for place in self._places.values()]
        seen, drawn = sum(floor.seen for floor in floors), sum(floor.drawn for floor in floors)
        if seen == drawn:
            return None
        least = max(floor.bytes for floor in floors)
        return f"{drawn} of {seen} tensor lifetimes are drawn; in the end those of at least {least} bytes"

    def _by_peak(self) -> list[Place]:
        """The places, that with the highest peak first: it is shown in its rank's own process."""
        return sorted(self._places, key=lambda place: (-self._places[place].peak.bytes, place))

    def _encode_place(self, residence: Residence) -> Iterator[bytes]:
        place = self._places.get(residence.place)
        if place is None:
            place = self._places[residence.place] = _PlaceTracks(self._lifetimes_bytes)
        place.peak.add(residence)
        for change in place.categories.add(residence):
            track = self._tracks.category(residence.place, change.category)
            yield packets.encode_counter(change.time_ns, track, np.minimum(change.bytes, HIGHEST_EXACT))
        born = residence.lifetimes.born.columns
        drawn = place.floor.admit(born["size_bytes"], residence.allocated_bytes)
        from_before = born["name"] == 0
        for name, wanted in ((DURING, ~from_before), (BEFORE, from_before)):
            edges = place.charts[name].add(residence, drawn & wanted)
            if edges is not None and len(edges):
                yield self._encode_edges(residence.place, name, edges)

    def _encode_edges(self, place: Place, chart: str, edges: Edges) -> bytes:
        return encode_bars(
            Bars(
                time_ns=edges.time_ns,
                begins=edges.begins,
                track=self._track(place, chart, edges.lane),
                name=self._operators(edges) if chart == DURING else self._category_names(edges.category),
                size_bytes=edges.size_bytes,
                module=self._interning.texts(edges.module),
                category=self._category_texts(edges.category),
                device=np.full(len(edges), self._interning.text(self._tracks.device_name(place.device))),
            )
        )

    def _track(self, place: Place, chart: str, lane: Ints) -> Ints:
        lanes = self._places[place].lanes
        known, wanted = lanes[chart], int(lane.max()) + 1
        if wanted > len(known):
            new = [self._tracks.lifetimes(place, chart, number) for number in range(len(known), wanted)]
            known = lanes[chart] = np.concatenate((known, new))
        return known[lane]

    def _operators(self, edges: Edges) -> Ints:
        """Interned names of the operators that made the storages."""
        name = np.zeros(len(edges), np.int64)
        name[edges.begins] = self._interning.names(_titles.OPERATOR, edges.name[edges.begins])
        return name

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
