"""Counters of a simulated device, as its caching allocator would have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memexport.analysis.allocator_settings import UNLIMITED, AllocatorSettings
from memexport.analysis.caching_allocator import CachingAllocator
from memexport.model import COLUMNS, NULLS, Column, EventBatch, EventKind, Tables

COUNTERS = ("allocated_bytes", "active_bytes", "reserved_bytes")


@dataclass(frozen=True)
class _Peak:
    """When `allocated` was highest on a device: what its MARKER says."""

    time_unix_ns: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    module: int
    phase: int
    thread: int


class _Device:
    """One device's allocator, and its counters where they were highest."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.peak: _Peak | None = None
        self.peak_reserved = 0

    def counters(self, batch: EventBatch, here: Column) -> tuple[Column, Column]:
        """Allocated and reserved bytes after each of these events."""
        kind = batch.kind[here]
        moves = (kind == EventKind.ALLOCATION) | (kind == EventKind.RELEASE)
        allocator = self.allocator
        allocated, reserved = [allocator.allocated], [allocator.reserved]
        rows = here[moves]
        for is_release, key, size in zip(
            (batch.kind[rows] == EventKind.RELEASE).tolist(),
            batch.address[rows].tolist(),
            batch.size_bytes[rows].tolist(),
            strict=True,
        ):
            if is_release:
                allocator.release(key)
            else:
                allocator.allocate(key, size)
            allocated.append(allocator.allocated)
            reserved.append(allocator.reserved)
        latest = np.cumsum(moves)
        return np.array(allocated, np.int64)[latest], np.array(reserved, np.int64)[latest]

    def note_peak(self, batch: EventBatch, here: Column, allocated: Column, reserved: Column) -> None:
        """Remember the highest so far, with where it was."""
        self.peak_reserved = max(self.peak_reserved, int(reserved.max()))
        highest = int(allocated.argmax())
        if self.peak is not None and allocated[highest] <= self.peak.allocated_bytes:
            return
        at = int(here[highest])
        self.peak = _Peak(
            time_unix_ns=int(batch.time_unix_ns[at]) + max(int(batch.duration_ns[at]), 0),
            allocated_bytes=int(allocated[highest]),
            active_bytes=int(allocated[highest]),
            reserved_bytes=int(reserved[highest]),
            module=int(batch.module[at]),
            phase=int(batch.phase[at]),
            thread=int(batch.thread[at]),
        )


class AllocatorEstimate:
    """Replaces what a recording of simulated tensors says of a device by what its allocator would say.

    A fold over the batches of one rank, in order: ALLOCATION and RELEASE events drive a `CachingAllocator`
    for each device; `allocated`, `active` and `reserved` after each event are the allocator's, and the MARKER
    "peak" says where they peaked. A SAMPLE before a device's first event says that nothing was there.

    Args:
        is_simulated: whether the device with this index has such an allocator; others stay as they are.
        tables: the recording's.
        settings: of the allocators.
        limit: the most that each may reserve; see `CachingAllocator`.
    """

    def __init__(
        self,
        is_simulated: Callable[[int], bool],
        tables: Tables,
        settings: AllocatorSettings | None = None,
        limit: int = UNLIMITED,
    ) -> None:
        self._is_simulated = is_simulated
        self._peak_name = tables.strings.intern("peak")
        self._settings = settings
        self._limit = limit
        self._devices: dict[int, _Device] = {}

    @property
    def retries(self) -> int:
        """How often the allocators gave their cached segments back to make room."""
        return sum(device.allocator.retries for device in self._devices.values())

    @property
    def failures(self) -> int:
        """How many requests did not fit."""
        return sum(device.allocator.failures for device in self._devices.values())

    def counters(self, device: int) -> dict[str, int]:
        """What the device's allocator says now, and its peaks: all 0 before the first event."""
        found = self._devices.get(device)
        if found is None:
            return dict.fromkeys(("allocated", "reserved", "peak_allocated", "peak_reserved"), 0)
        return {
            "allocated": found.allocator.allocated,
            "reserved": found.allocator.reserved,
            "peak_allocated": found.peak.allocated_bytes if found.peak else 0,
            "peak_reserved": found.peak_reserved,
        }

    def apply(self, batch: EventBatch) -> EventBatch:
        """The batch with the estimated counters; itself where none of its devices is simulated."""
        simulated = [i for i in np.unique(batch.device).tolist() if i >= 0 and self._is_simulated(i)]
        for index in simulated:
            batch = self._with_first_sample(index, batch)
        columns: dict[str, Column] = {}
        for index in simulated:
            columns = columns or {name: column.copy() for name, column in batch.columns().items()}
            here = np.flatnonzero((batch.device == index) & (batch.allocated_bytes >= 0))
            peaks = (batch.kind[here] == EventKind.MARKER) & (batch.name[here] == self._peak_name)
            self._estimate(index, batch, here[~peaks], columns)
            self._correct_peaks(index, here[peaks], columns)
        return EventBatch(**columns) if columns else batch

    def _with_first_sample(self, index: int, batch: EventBatch) -> EventBatch:
        if index in self._devices:
            return batch
        self._devices[index] = _Device(CachingAllocator(self._settings, self._limit))
        first = int(np.argmax(batch.device == index))
        kept = ("time_unix_ns", "thread", "step", "rank", "device")
        values = dict(NULLS) | {name: getattr(batch, name)[first] for name in kept}
        values |= {"kind": EventKind.SAMPLE, "duration_ns": 0} | dict.fromkeys(COUNTERS, 0)
        return EventBatch(
            **{
                name: np.insert(column, first, COLUMNS[name].type(values[name]))
                for name, column in batch.columns().items()
            }
        )

    def _estimate(self, index: int, batch: EventBatch, here: Column, columns: dict[str, Column]) -> None:
        if not len(here):
            return
        device = self._devices[index]
        allocated, reserved = device.counters(batch, here)
        columns["allocated_bytes"][here] = columns["active_bytes"][here] = allocated
        columns["reserved_bytes"][here] = reserved
        device.note_peak(batch, here, allocated, reserved)

    def _correct_peaks(self, index: int, peaks: Column, columns: dict[str, Column]) -> None:
        device = self._devices[index]
        if device.peak is None:
            return
        for name, value in vars(device.peak).items():
            columns[name][peaks] = value
