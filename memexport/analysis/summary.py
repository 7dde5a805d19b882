"""Folds a recording into one summary: the counters, their peaks and what made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from memexport.analysis.breakdown import (
    ModuleBytes,
    OperatorBytes,
    by_category,
    by_module,
    by_operator,
)
from memexport.analysis.live import Allocations
from memexport.analysis.place_fold import Counter, FailedRequest, Moment, PlaceFold
from memexport.analysis.places import Place, place_names, split_by_place
from memexport.analysis.stacks import StackBytes, Stacks
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

TOP: Final = 20
"""How many operators and modules a summary lists."""


@dataclass(frozen=True)
class CounterSummary:
    """A device counter in bytes: at the start, its maximum from there on, and last."""

    start: int
    peak: int
    end: int


@dataclass(frozen=True)
class DeviceSummary:
    """One device of one rank.

    Attributes:
        allocated: with `active` and `reserved`, the device's counters; None for one that is not known.
        peak_time_unix_ns: when `allocated` first reached its peak; with `peak_operator`, `peak_module` and
            `peak_phase`, the event at which it did. None for what is not known.
        categories_at_peak: bytes by category at that event, largest first. They add up to the peak: what no
            allocation explains is "unattributed".
        modules_at_peak: the `TOP` modules by bytes at that event.
        operators_at_peak: the `TOP` operators by what they allocated of that.
        fragmentation_at_peak: the bytes that were reserved but not active after that event: free, but in
            pieces that may be too small, or rounded away. None where a counter is not known.
        stacks_at_peak: the `TOP` stacks by bytes at that event; empty if no stack is known.
        failed_requests: the first ones that the device had no memory for.
        reserved_at_peak: the counter after that event. With `code_at_peak` only for the report, not in the
            JSON.
        code_at_peak: like `stacks_at_peak`, by the innermost frames of the user's own code.
    """

    allocated: CounterSummary | None
    active: CounterSummary | None
    reserved: CounterSummary | None
    peak_time_unix_ns: int | None
    peak_operator: str | None
    peak_module: str | None
    peak_phase: str | None
    categories_at_peak: Mapping[str, int]
    modules_at_peak: tuple[ModuleBytes, ...]
    operators_at_peak: tuple[OperatorBytes, ...]
    fragmentation_at_peak: int | None
    stacks_at_peak: tuple[StackBytes, ...]
    failed_requests: tuple[FailedRequest, ...]
    reserved_at_peak: int | None
    code_at_peak: tuple[StackBytes, ...]


@dataclass(frozen=True)
class Summary:
    """What a recording comes to. `str()` gives a report of 80 columns, `to_dict` the public JSON.

    Attributes:
        steps: how many different steps there were.
        duration_ns: from the first event's start to the last one's end.
        devices: by name: "cuda:0", or "rank 3 cuda:0" where there are several ranks.
        top_operators: the `TOP` (operator, module, phase) by the sum of their net changes.
        markers: the first 1000.
        alloc_retries: with `ooms`, None where it is not known.
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

    def to_dict(self) -> dict[str, Any]:
        """What `memexport summary --json` prints: its keys are frozen, unknown values are None."""
        fields = asdict(self)
        for name in ("top_operators", "markers", "warnings"):
            fields[name] = list(fields[name])
        for device in fields["devices"].values():
            del device["reserved_at_peak"], device["code_at_peak"]
            for name in ("modules_at_peak", "operators_at_peak", "stacks_at_peak", "failed_requests"):
                device[name] = list(device[name])
            for row in (*device["stacks_at_peak"], *device["failed_requests"]):
                row["stack"] = row["stack"] and list(row["stack"])
        return fields

    def __str__(self) -> str:
        from memexport.analysis.report import render_text

        return render_text(self)


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
        devices = {name: self._device(self._places[place]) for place, name in names.items()}
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
            live = _live_at(fold.peak) if peak else fold.live.live()
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
        for place, positions in split_by_place(batch):
            self._place(place).add(batch, positions)

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

    def _device(self, fold: PlaceFold) -> DeviceSummary:
        moment, peak = fold.peak, fold.counters["allocated"].peak
        live = _live_at(moment)
        stacks = Stacks(live, peak, self._tables)
        return DeviceSummary(
            allocated=_counter(fold.counters["allocated"]),
            active=_counter(fold.counters["active"]),
            reserved=_counter(fold.counters["reserved"]),
            peak_time_unix_ns=moment.time_unix_ns if moment else None,
            peak_operator=moment.operator if moment else None,
            peak_module=moment.module if moment else None,
            peak_phase=moment.phase if moment else None,
            categories_at_peak=by_category(live, peak),
            modules_at_peak=by_module(live, peak, self._tables.strings)[:TOP],
            operators_at_peak=by_operator(live, peak, self._tables.strings)[:TOP],
            fragmentation_at_peak=_unused(moment),
            stacks_at_peak=stacks.whole(TOP),
            failed_requests=tuple(fold.failed_requests),
            reserved_at_peak=moment.reserved_bytes if moment else None,
            code_at_peak=stacks.own_code(TOP),
        )

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


def _live_at(moment: Moment | None) -> Allocations:
    return moment.live() if moment else Allocations.none()


def _unused(moment: Moment | None) -> int | None:
    """What was reserved but not active; None where that is unknown or the two contradict each other."""
    if moment is None or moment.active_bytes is None or moment.reserved_bytes is None:
        return None
    unused = moment.reserved_bytes - moment.active_bytes
    return unused if unused >= 0 else None


def _counter(counter: Counter) -> CounterSummary | None:
    if counter.start is None or counter.peak is None or counter.end is None:
        return None
    return CounterSummary(counter.start, counter.peak, counter.end)
