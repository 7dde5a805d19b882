"""Folds a recording, batch by batch, into what its metrics show when they are collected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.pauses import Pauses
from memexport.analysis.place_fold import COUNTERS
from memexport.analysis.places import Place, split_by_place
from memexport.exporters import _otel_metrics as metrics
from memexport.exporters._otel_device import Cells, DeviceFold, Steps
from memexport.exporters._otel_metrics import Metric
from memexport.exporters._otel_modules import CATEGORIES, MAX_DEVICES, ModuleSlots, Room
from memexport.exporters._otel_snapshot import Attributes, Numbers, SeriesList, Snapshot, Tallied
from memexport.model import Column, Device, EventBatch, EventKind, Phase, RecordingEnd, RecordingInfo, Tables

_NOTHING: Final = (np.empty(0, np.int64), np.empty(0, np.int64))
_NO_STEPS: Final = Steps(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
_PHASES: Final = {int(phase): phase.name.lower() for phase in Phase}


@dataclass(frozen=True)
class FoldOptions:
    """What is exported of modules.

    Attributes:
        module_depth: components of a module's name that count; what is deeper is added to its parent.
        top_modules: modules with series of their own, at most 50; the rest are "other".

    Raises:
        UsageError: a value is out of its range.
    """

    module_depth: int = 2
    top_modules: int = 50

    def __post_init__(self) -> None:
        ModuleSlots(Tables().strings, self.module_depth, Room.for_modules(self.top_modules))


class MetricsFold:
    """Takes the batches of a recording in order; `collect` may be called after any of them.

    Calls must come from one thread at a time. Memory grows with what is live at once.
    """

    def __init__(self, info: RecordingInfo, tables: Tables, options: FoldOptions) -> None:
        self._info = info
        self._tables = tables
        self._options = options
        self._processes: dict[int, _ProcessFold] = {}
        self._started: set[int] = set()
        self._pauses = Pauses(tables.strings)

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        if not len(batch):
            return
        ooms = self._named(batch, EventKind.MARKER, "oom")
        starts = self._starts(batch)
        steps = self._steps(batch)
        present = set()
        for place, positions in split_by_place(batch):
            present.add(place)
            device = self._process(place.rank).device(place.device)
            if len(ooms):
                device.ooms += int(np.isin(positions, ooms).sum())
            first = 0 if place.rank in self._started else starts.get(place.rank, 0)
            # Markers repeat what their neighbours say, and "peak" comes when all is over.
            positions = positions[batch.kind[positions] != EventKind.MARKER]
            device.add(batch, positions, first, steps.get(place.rank, _NO_STEPS))
        self._started |= starts.keys()
        for rank, of_rank in steps.items():
            for place, device in self._process(rank).places(rank):
                if place not in present:
                    device.pass_over(of_rank)

    def end(self, end: RecordingEnd) -> None:
        """Take what is known only when the recording is over, or what is known of it until now."""
        ranks = list(self._processes)
        # Of several processes nobody knows whose these are.
        self._process(ranks[0] if len(ranks) == 1 else -1).count(end)

    def collect(self) -> dict[int, Snapshot]:
        """All series of each process, by its rank (−1: not known); peaks and tallies begin anew."""
        return {rank: process.collect() for rank, process in sorted(self._processes.items())}

    def _process(self, rank: int) -> _ProcessFold:
        process = self._processes.get(rank)
        if process is None:
            process = self._processes[rank] = _ProcessFold(self._info.devices, self._tables, self._options)
        return process

    def _starts(self, batch: EventBatch) -> dict[int, int]:
        """The position of the first MARKER "start" of each rank that the batch has one of."""
        rows = self._named(batch, EventKind.MARKER, "start")
        return dict(zip(batch.rank[rows[::-1]].tolist(), rows[::-1].tolist(), strict=True))

    def _steps(self, batch: EventBatch) -> dict[int, Steps]:
        in_pause, resumed = self._pauses.read(batch)
        ends = self._named(batch, EventKind.SPAN, "step")
        ends = ends[(batch.step[ends] >= 0) & (batch.duration_ns[ends] >= 0)]
        durations_ns = np.where(np.isin(np.arange(len(batch)), resumed), -1, batch.duration_ns)
        steps = {}
        for rank in np.unique(batch.rank[np.concatenate([ends, resumed])]).tolist():
            rows = np.union1d(ends, resumed)
            rows = rows[batch.rank[rows] == rank]
            steps[rank] = Steps(rows, durations_ns[rows], in_pause[rows])
        return steps

    def _named(self, batch: EventBatch, kind: EventKind, name: str) -> Column:
        name_id = self._tables.strings.find(name)
        if name_id is None:
            return np.empty(0, np.int64)
        return np.flatnonzero((batch.kind == kind) & (batch.name == name_id))


class _ProcessFold:
    """The devices of one process, and the series that it has in common."""

    def __init__(self, devices: list[Device], tables: Tables, options: FoldOptions) -> None:
        self._all_devices = devices
        self._tables = tables
        self._options = options
        self._room = Room.for_modules(options.top_modules)
        self._devices: dict[int, DeviceFold] = {}
        self._series = {metric: SeriesList(metric) for metric in metrics.METRICS}
        self._cells_of: dict[int, tuple[Cells, Cells]] = {}
        self._counts: dict[Metric, dict[Attributes, int]] = {}

    def device(self, index: int) -> DeviceFold:
        device = self._devices.get(index)
        if device is None:
            named = len(self._devices) < MAX_DEVICES
            label = str(self._all_devices[index]) if named else metrics.OTHER
            modules = ModuleSlots(
                self._tables.strings, self._options.module_depth, self._room if named else Room(0)
            )
            device = self._devices[index] = DeviceFold(label, modules)
            self._cells_of[index] = self._cells(device)
        return device

    def places(self, rank: int) -> Iterator[tuple[Place, DeviceFold]]:
        """Each device, with its place if this is the process of that rank."""
        return ((Place(rank, index), device) for index, device in self._devices.items())

    def count(self, end: RecordingEnd) -> None:
        """Remember what was counted over the whole recording, or until now."""
        accelerators = [d.label for i, d in self._devices.items() if self._all_devices[i].type != "cpu"]
        attributes = ((metrics.DEVICE, accelerators[0]),) if len(accelerators) == 1 else ()
        if end.alloc_retries is not None:
            self._count(metrics.RETRIES, attributes, end.alloc_retries)
        if end.ooms is not None and not any(device.ooms for device in self._devices.values()):
            self._count(metrics.OOMS, attributes, end.ooms)
        self._count(metrics.DROPPED, (), end.dropped_events)

    def _count(self, metric: Metric, attributes: Attributes, total: int) -> None:
        """Add what is new to the series with these attributes; others, from before, keep what they have."""
        series = self._counts.setdefault(metric, {})
        series[attributes] = series.get(attributes, 0) + max(0, total - sum(series.values()))

    def collect(self) -> Snapshot:
        numbers = tuple(
            found
            for found in (*self._levels(), *self._tables_of_bytes(), *self._totals(), self._limits())
            if found.attributes
        )
        snapshot = Snapshot(numbers, tuple(self._tallied()))
        for device in self._devices.values():
            device.restart()
        return snapshot

    def _cells(self, device: DeviceFold) -> tuple[Cells, Cells]:
        by_category, by_module = self._series[metrics.USAGE], self._series[metrics.MODULE_USAGE]

        def place_in_modules(cell: int) -> int:
            slot, category = divmod(cell, len(CATEGORIES))
            return by_module.place(device.label, device.modules.names[slot], CATEGORIES[category])

        return (
            Cells(lambda category: by_category.place(device.label, CATEGORIES[category])),
            Cells(place_in_modules),
        )

    def _levels(self) -> Iterator[Numbers]:
        """The counters now, and their peaks. Devices that share a name are added up, peaks too."""
        for name in COUNTERS:
            known = [device for device in self._devices.values() if device.levels[name].now >= 0]
            levels = [device.levels[name] for device in known]
            yield self._by_device(metrics.LEVELS[name], known, [level.now for level in levels])
            yield self._by_device(metrics.PEAKS[name], known, [level.peak for level in levels])

    def _tables_of_bytes(self) -> Iterator[Numbers]:
        """Bytes by category, and by module and category, of one and the same moment."""
        by_category, by_module = [_NOTHING], [_NOTHING]
        for index, device in self._devices.items():
            table = device.table()
            categories, modules = self._cells_of[index]
            in_all = categories.values(table.reshape(-1, len(CATEGORIES)).sum(axis=0))
            in_modules = modules.values(table)
            by_category.append((categories.places, in_all))
            by_module.append((modules.places, in_modules))
        for metric, parts in ((metrics.USAGE, by_category), (metrics.MODULE_USAGE, by_module)):
            places, values = zip(*parts, strict=True)
            yield self._series[metric].numbers(np.concatenate(places), np.concatenate(values))

    def _totals(self) -> Iterator[Numbers]:
        devices = list(self._devices.values())
        yield self._by_device(metrics.OPERATORS, devices, [device.operators for device in devices])
        if metrics.OOMS not in self._counts:
            failed = [device for device in devices if device.ooms]
            yield self._by_device(metrics.OOMS, failed, [device.ooms for device in failed])
        for metric, counts in self._counts.items():
            series = self._series[metric]
            yield series.numbers([series.place_of(each) for each in counts], list(counts.values()))

    def _by_device(self, metric: Metric, devices: list[DeviceFold], values: list[int]) -> Numbers:
        series = self._series[metric]
        return series.numbers([series.place(device.label) for device in devices], values)

    def _limits(self) -> Numbers:
        """What the vendor says that each GPU has, where it says which one that is."""
        series = self._series[metrics.GPU_LIMIT]
        gpus = [self._all_devices[index] for index in self._devices]
        known = [gpu for gpu in gpus if gpu.uuid is not None and gpu.capacity_bytes is not None]
        places = [series.place_of(gpu_attributes(gpu)) for gpu in known]
        return series.numbers(places, [gpu.capacity_bytes or 0 for gpu in known])

    def _tallied(self) -> Iterator[Tallied]:
        for device in self._devices.values():
            where = (metrics.DEVICE, device.label)
            for phase, tally in sorted(device.sizes.items()):
                in_phase = (metrics.PHASE, _PHASES.get(phase, _PHASES[Phase.UNKNOWN]))
                yield Tallied(metrics.ALLOCATION_SIZE, (where, in_phase), tally)
            if device.step_seconds:
                yield Tallied(metrics.STEP_DURATION, (where,), device.step_seconds)
            if device.step_peaks:
                yield Tallied(metrics.STEP_PEAK, (where,), device.step_peaks)


_VENDORS: Final = ("NVIDIA", "AMD", "Intel", "Apple")


def gpu_attributes(gpu: Device) -> Attributes:
    """What identifies a GPU, by the semantic conventions for hardware; its UUID must be known."""
    vendor = next((vendor for vendor in _VENDORS if (gpu.name or "").startswith(vendor)), None)
    known = {"hw.id": gpu.uuid, "hw.name": gpu.name, "hw.vendor": vendor}
    return tuple((key, value) for key, value in known.items() if value is not None)
