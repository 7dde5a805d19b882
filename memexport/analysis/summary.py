"""Folds a recording into one summary: the counters, their peaks and what made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from memexport.analysis.advice import Advice, advise
from memexport.analysis.breakdown import by_category
from memexport.analysis.device_summary import TOP, DeviceSummary, device_summary, live_at
from memexport.analysis.growth import DeviceGrowth, StepSamples
from memexport.analysis.imbalance import Imbalance, PhasePeaks, RankPeak, compare
from memexport.analysis.place_fold import PlaceFold
from memexport.analysis.places import Place, place_names, split_by_place
from memexport.analysis.step_ends import StepEnds
from memexport.analysis.totals import Marker, OperatorTotal, Totals
from memexport.model import (
    Clock,
    Column,
    EventBatch,
    EventKind,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

_NO_POSITIONS: Final = np.empty(0, np.intp)


@dataclass(frozen=True)
class Summary:
    """What a recording comes to: `str()` gives a report of 80 columns, `to_dict` the public JSON.

    Attributes:
        steps: how many different steps there were.
        duration_ns: from the first event's start to the last one's end.
        devices: by name: "cuda:0", or "rank 3 cuda:0" where there are several ranks.
        top_operators: the `TOP` (operator, module, phase) by the sum of their net changes.
        markers: the first 1000.
        alloc_retries: with `ooms`, None where it is not known.
        growth: by device, what grew from step to step; None where there are too few steps to say. The rule
            is in `memexport.analysis.growth`. In the JSON, "growth" is `{device: {"steps_compared",
            "bytes_per_step", "rises", "first_bytes", "last_bytes", "suspicious", "modules": [{"module",
            "bytes_per_step", "rises", "first_bytes", "last_bytes"}]}}`, or null for a device.
        advice: what to try next, where the figures support it; what saves most comes first. In the JSON,
            "advice" is `[{"topic", "device", "bytes", "text", "modules": [{"module", "bytes"}]}]`.
        ranks: how the ranks compare, by type of device ("cuda"); empty, and not in the JSON, unless there are
            several.
    """

    format: str
    schema_version: str
    events: int
    operators: int
    allocations: int
    releases: int
    steps: int
    clock: Clock
    duration_ns: int
    devices: Mapping[str, DeviceSummary]
    top_operators: tuple[OperatorTotal, ...]
    markers: tuple[Marker, ...]
    alloc_retries: int | None
    ooms: int | None
    warnings: tuple[str, ...]
    growth: Mapping[str, DeviceGrowth | None]
    advice: tuple[Advice, ...]
    ranks: Mapping[str, Imbalance]

    def to_dict(self) -> dict[str, Any]:
        """What `memexport summary --json` prints: its keys are frozen, unknown values are None."""
        devices = {name: replace(device, live_at_peak=()) for name, device in self.devices.items()}
        fields = asdict(replace(self, devices=devices, growth={}, ranks={}))
        del fields["ranks"]
        if self.ranks:
            fields["ranks"] = {name: found.to_dict() for name, found in self.ranks.items()}
        fields["growth"] = {name: found and found.to_dict() for name, found in self.growth.items()}
        fields["advice"] = [{**one, "modules": list(one["modules"])} for one in fields["advice"]]
        for name in ("top_operators", "markers", "warnings"):
            fields[name] = list(fields[name])
        for device in fields["devices"].values():
            del device["reserved_at_peak"], device["code_at_peak"], device["live_at_peak"]
            for name in ("modules_at_peak", "operators_at_peak", "stacks_at_peak", "failed_requests"):
                device[name] = list(device[name])
            for request in device["failed_requests"]:
                for name in ("modules", "operators", "stacks"):
                    request[name] = list(request[name])
            stacks = [row for request in device["failed_requests"] for row in request["stacks"]]
            for row in (*device["stacks_at_peak"], *device["failed_requests"], *stacks):
                row["stack"] = row["stack"] and list(row["stack"])
        return fields

    def __str__(self) -> str:
        from memexport.analysis.report import render_text

        return render_text(self)

    def to_markdown(self) -> str:
        """The report as GitHub Markdown, for an issue or a pull request."""
        from memexport.analysis.summary_markdown import render_markdown

        return render_markdown(self)

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from memexport.analysis.notebook import summary_html

        return summary_html(self)


class SummaryFold:
    """Takes the batches of a recording in order; `result` may be asked for at any time, and adding go on.

    The start is the first MARKER named "start"; the allocations before it only register what lived before the
    recording. Without one it is right before the first event whose counter is known. Counters of the MARKER
    "peak", which stands after everything else, are not taken for the last ones.

    Memory grows with what is live at once and with distinct strings, not with the number of events. Calls
    must come from one thread at a time.
    """

    def __init__(self, info: RecordingInfo, tables: Tables) -> None:
        self._info = info
        self._tables = tables
        self._totals = Totals(tables)
        self._places: dict[Place, PlaceFold] = {}
        self._started_ranks: set[int] = set()
        self._step_ends = StepEnds(tables.strings)
        several = info.rank is None and (info.world_size or 1) > 1
        self._phase_peaks = PhasePeaks() if several else None

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        if not len(batch):
            return
        markers_before = self._totals.count(EventKind.MARKER)
        self._totals.add(batch)
        if self._totals.count(EventKind.MARKER) == markers_before:
            self._add_to_places(batch)
            return
        batch = self._without_peak_markers(batch)
        for piece, begins_with_start in self._cut_at_starts(batch):
            if begins_with_start:
                self._start(piece)
            self._add_to_places(piece)

    def result(self, end: RecordingEnd) -> Summary:
        """What has been added so far comes to, with what the recording's end has to say."""
        totals, names = self._totals, place_names(list(self._places), self._info)
        devices = {name: device_summary(self._places[place], self._tables) for place, name in names.items()}
        growth = {
            name: self._places[place].steps.growth(self._tables.strings, TOP) for place, name in names.items()
        }
        return Summary(
            format=self._info.format,
            schema_version=self._info.schema_version,
            events=totals.events,
            operators=totals.count(EventKind.OPERATOR),
            allocations=totals.count(EventKind.ALLOCATION),
            releases=totals.count(EventKind.RELEASE),
            steps=len(totals.steps),
            clock=self._info.clock,
            duration_ns=totals.duration_ns,
            devices=devices,
            top_operators=totals.operators.top(TOP, self._tables.strings),
            markers=tuple(totals.markers),
            alloc_retries=end.alloc_retries,
            ooms=end.ooms,
            warnings=(*end.warnings, *self._warnings(end, devices)),
            growth=growth,
            advice=advise(self._info.format, devices, growth, end.alloc_retries),
            ranks=compare(self._rank_peaks(names, devices)),
        )

    def usage(self, which: str) -> dict[str, dict[str, int]]:
        """Bytes by category and their "total", per device: at the "peak" of `allocated` or "current".

        Categories without bytes are left out.

        Raises:
            ValueError: `which` is neither.
        """
        if which not in ("peak", "current"):
            raise ValueError(f'usage is "peak" or "current", not {which!r}')
        usage = {}
        for place, name in place_names(list(self._places), self._info).items():
            fold = self._places[place]
            allocated = fold.counters["allocated"]
            peak = which == "peak"
            live = live_at(fold.peak) if peak else fold.live.live()
            total = allocated.peak if peak else allocated.end
            categories = by_category(live, total)
            usage[name] = {**categories, "total": sum(categories.values()) if total is None else total}
        return usage

    def _start(self, batch: EventBatch) -> None:
        """Start every place that is concerned by the MARKER that the batch begins with."""
        marker = Place(int(batch.rank[0]), int(batch.device[0]))
        if self._started_ranks & {marker.rank, -1}:
            return
        if marker.device >= 0:
            self._place(marker)
        else:
            self._started_ranks.add(marker.rank)
        for fold in self._places.values():
            fold.start(batch, 0)

    def _place(self, place: Place) -> PlaceFold:
        fold = self._places.get(place)
        if fold is None:
            fold = self._places[place] = PlaceFold(place, self._tables)
        return fold

    def _add_to_places(self, batch: EventBatch) -> None:
        ends: dict[int, Column] = {}
        for rank, positions, is_first in self._step_ends.read(batch):
            ends[rank] = positions
            if is_first:
                self._forget_steps(rank)
        concerned = set()
        for place, positions in split_by_place(batch):
            of_rank = ends.get(place.rank, _NO_POSITIONS)
            # Steps that ended before the first event of a place are none of its own.
            own = of_rank if place in self._places else of_rank[of_rank > positions[0]]
            self._place(place).add(batch, positions, own)
            if self._phase_peaks is not None:
                self._phase_peaks.add(place, batch, positions)
            concerned.add(place)
        for place in self._places.keys() - concerned:
            if place.rank in ends:
                self._places[place].add(batch, _NO_POSITIONS, ends[place.rank])

    def _forget_steps(self, rank: int) -> None:
        for place, fold in self._places.items():
            if place.rank == rank:
                fold.steps = StepSamples()

    def _without_peak_markers(self, batch: EventBatch) -> EventBatch:
        peaks = self._markers_called("peak", batch)
        return batch.select(np.delete(np.arange(len(batch)), peaks)) if len(peaks) else batch

    def _cut_at_starts(self, batch: EventBatch) -> Iterator[tuple[EventBatch, bool]]:
        """The batch in pieces, each but the first beginning with a MARKER "start"; and whether it does."""
        cuts = self._markers_called("start", batch).tolist()
        for begin, stop in zip([0, *cuts], [*cuts, len(batch)], strict=True):
            if stop > begin:
                yield batch.select(slice(begin, stop)), begin in cuts

    def _markers_called(self, name: str, batch: EventBatch) -> Column:
        name_id = self._tables.strings.find(name)
        if name_id is None:
            return np.empty(0, np.int64)
        return np.flatnonzero((batch.kind == EventKind.MARKER) & (batch.name == name_id))

    def _rank_peaks(
        self, names: Mapping[Place, str], devices: Mapping[str, DeviceSummary]
    ) -> Iterator[tuple[str, RankPeak]]:
        """Each place's peak with its device's type, where both are known."""
        for place, name in names.items():
            allocated, phases = devices[name].allocated, self._phase_peaks
            if allocated is None or place.rank < 0 or place.device >= len(self._info.devices):
                continue
            device = devices[name]
            of_phases = {} if phases is None else phases.of(place)
            categories = device.categories_at_peak
            peak = RankPeak(place.rank, name, allocated.peak, device.peak_phase, categories, of_phases)
            yield self._info.devices[place.device].type, peak

    def _warnings(self, end: RecordingEnd, devices: Mapping[str, DeviceSummary]) -> Iterator[str]:
        if end.dropped_events:
            yield f"{end.dropped_events} events were dropped while recording: sums and peaks may be too low"
        for name, device in devices.items():
            peak = device.allocated.peak if device.allocated else 0
            excess = sum(device.categories_at_peak.values()) - peak
            if excess > 0:
                yield f"{name}: what is live at the peak takes {excess} bytes more than its counter says"
        if self._totals.markers_left_out:
            yield f"{self._totals.markers_left_out} more markers are not listed"
