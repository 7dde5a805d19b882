"""What a Perfetto trace shows of single storages: their lifetimes, their categories, and the peak."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memexport.analysis.places import Place
from memexport.exporters import _perfetto_packets as packets
from memexport.exporters._categories import CategoryCounters
from memexport.exporters._counters import HIGHEST_EXACT
from memexport.exporters._flamegraph import stacks
from memexport.exporters._peaks import Peak, StepPeaks
from memexport.exporters._perfetto_bars import Bars
from memexport.exporters._perfetto_heap import HeapProfile
from memexport.exporters._perfetto_interning import Interning
from memexport.exporters._perfetto_lifetimes import LifetimeCharts
from memexport.exporters._perfetto_moments import Samples
from memexport.exporters._perfetto_tracks import Tracks
from memexport.exporters._residence import Residence, Residences
from memexport.model import EventBatch, Tables


@dataclass(frozen=True)
class Drawing:
    """What is drawn of the storages of one batch, in all places.

    Attributes:
        samples: the categories' counters.
        bars: tensor lifetimes, place by place.
        dumps: heap dumps, as packets.
    """

    samples: list[Samples] = field(default_factory=list)
    bars: list[Bars] = field(default_factory=list)
    dumps: list[bytes] = field(default_factory=list)


class _PlaceTracks:
    """What is drawn of one place."""

    def __init__(self, lifetimes: LifetimeCharts) -> None:
        self.categories = CategoryCounters()
        self.lifetimes = lifetimes
        self.peak = Peak()
        self.step_peaks = StepPeaks()


class MemoryTracks:
    """Draws the storages of every place.

    Args:
        lifetimes_bytes: storages of at least this size get a bar; None: see `SizeFloor`.
        step_peaks: dump what lived at each step's peak, not only at the highest of all.
    """

    def __init__(
        self,
        tables: Tables,
        interning: Interning,
        tracks: Tracks,
        lifetimes_bytes: int | None,
        step_peaks: bool,
    ) -> None:
        self._tables = tables
        self._interning = interning
        self._tracks = tracks
        self._lifetimes_bytes = lifetimes_bytes
        self._has_step_peaks = step_peaks
        self._residences = Residences(tables.strings)
        self._places: dict[Place, _PlaceTracks] = {}
        self._heaps: dict[Place, HeapProfile] = {}

    def draw(self, batch: EventBatch, end_ns: npt.NDArray[np.int64]) -> Drawing:
        """What one more batch adds."""
        drawing = Drawing()
        for residence in self._residences.add(batch, end_ns):
            self._draw_place(residence, drawing)
        return drawing

    def encode_last_peaks(self) -> bytes:
        """The heap dumps that could not be made before the recording was over."""
        return b"".join(
            self._encode_peak(place, peak)
            for place in self._by_peak()
            for peak in (
                self._places[place].step_peaks.end() if self._has_step_peaks else [self._places[place].peak]
            )
        )

    def omitted(self) -> str | None:
        """A sentence on the storages that got no bar; None if all did."""
        floors = [place.lifetimes.floor for place in self._places.values()]
        seen, drawn = sum(floor.seen for floor in floors), sum(floor.drawn for floor in floors)
        if seen == drawn:
            return None
        least = max(floor.bytes for floor in floors)
        return f"{drawn} of {seen} tensor lifetimes are drawn; in the end those of at least {least} bytes"

    def _by_peak(self) -> list[Place]:
        """The places, that with the highest peak first: it is shown in its rank's own process."""
        return sorted(self._places, key=lambda place: (-self._places[place].peak.bytes, place))

    def _draw_place(self, residence: Residence, drawing: Drawing) -> None:
        place = self._place(residence.place)
        for change in place.categories.add(residence):
            track = self._tracks.category(residence.place, change.category)
            drawing.samples.append(Samples(track, change.time_ns, np.minimum(change.bytes, HIGHEST_EXACT)))
        bars = place.lifetimes.bars(residence)
        if bars is not None:
            drawing.bars.append(bars)
        place.peak.add(residence)
        if self._has_step_peaks:
            for peak in place.step_peaks.add(residence):
                drawing.dumps.append(self._encode_peak(residence.place, peak))

    def _place(self, place: Place) -> _PlaceTracks:
        if place not in self._places:
            charts = LifetimeCharts(place, self._tables, self._interning, self._tracks, self._lifetimes_bytes)
            self._places[place] = _PlaceTracks(charts)
        return self._places[place]

    def _encode_peak(self, place: Place, peak: Peak) -> bytes:
        """A heap dump; nothing where no more than the counter is known."""
        live = peak.live()
        if not len(live):
            return b""
        return self._heap(place).encode(stacks(live, peak.bytes, self._tables), peak.time_ns)

    def _heap(self, place: Place) -> HeapProfile:
        if place not in self._heaps:
            pid = self._tracks.heap(place, sum(other.rank == place.rank for other in self._heaps))
            name = f"{self._tracks.device_name(place.device)} allocated"
            self._heaps[place] = HeapProfile(packets.SEQUENCE_ID + 1 + len(self._heaps), pid, name)
        return self._heaps[place]
