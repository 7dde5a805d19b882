"""What accelerators' allocators say at the ends of steps that are not recorded in detail."""

from __future__ import annotations

import time
from typing import Final

from memexport.tracker import counters, rows
from memexport.tracker.allocators import ALLOCATOR_PEAK
from memexport.tracker.capture import Capture
from memexport.tracker.counters import UNKNOWN, Reading, ReadingReader
from memexport.tracker.rows import DEVICE_UNIT

RETRY: Final = "allocation retry"
"""The MARKER at a reading before which an allocator freed its cache and tried again."""

_SHARE: Final = 200
"""Readings are so far apart that they take at most this part of the time: 0.5 %."""


class StepCounters:
    """Reads the allocators and changes nothing: the program's own peak statistics stay as they are.

    So a peak is known only if it rose above every one before it; else it is left out. On the CPU there is
    nothing to read. Where a reading takes long and steps are short, not every step has one.

    Attributes:
        is_needed: there is an allocator to read.
    """

    def __init__(self, capture: Capture) -> None:
        self._storages = capture.storages
        labels = capture.labels
        self._sample = labels.code(rows.SAMPLE, None)
        self._peak = labels.code(rows.SAMPLE, ALLOCATOR_PEAK)
        self._retry = labels.code(rows.MARKER, RETRY)
        self.is_needed = False
        self._readers: dict[int, ReadingReader] = {}
        self._before: dict[int, Reading] = {}
        self._due_ns = 0

    def start(self) -> None:
        """Recording pauses here."""
        readers = zip(self._storages.devices, self._storages.allocators.readers, strict=True)
        self._readers = {
            index * DEVICE_UNIT: counters.reading_reader_of(device, reader)
            for index, (device, reader) in enumerate(readers)
            if reader is not None
        }
        self.is_needed = bool(self._readers)
        self._before = {device: read() for device, read in self._readers.items()}
        self._due_ns = 0

    def rows(self, context: int, now: int) -> bytes:
        """What there is to log before the end of a step."""
        if now < self._due_ns:
            return b""
        found = b""
        for device, read in self._readers.items():
            found += self._of_device(device, read(), context, now)
        self._due_ns = now + _SHARE * (time.perf_counter_ns() - now)
        return found

    def _of_device(self, device: int, reading: Reading, context: int, now: int) -> bytes:
        pack, before = rows.ROW.pack, self._before[device]
        self._before[device] = reading
        found = b""
        level = reading.counters
        self._storages.allocators.seen(device, level)
        if level.peak > before.counters.peak:
            found += pack(self._peak + device, context, now, 0, 0)
            found += pack(rows.COUNTERS + device, context, level.peak, UNKNOWN, UNKNOWN)
        found += pack(self._sample + device, context, now, 0, 0)
        found += pack(rows.COUNTERS + device, context, level.allocated, level.active, level.reserved)
        if reading.retries > before.retries:
            found += pack(self._retry, context, now, 0, 0)
        return found
