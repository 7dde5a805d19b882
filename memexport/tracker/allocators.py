"""Asks accelerators' allocators after operators, and notices what they had at most inside of one.

An allocator keeps its own peak, until the program resets it; nothing is reset here. Where it is higher after
an operator than before it, and higher than what is allocated then, that much was allocated for a moment
inside of it. So the highest moment is always known; lower ones are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch

from memexport.tracker import counters, rows
from memexport.tracker.counters import UNKNOWN, Counters, Reader
from memexport.tracker.rows import DEVICE_UNIT, Labels

ALLOCATOR_PEAK: Final = "allocator peak"
"""The SAMPLE of the most that was allocated at once since the reading before, where no operator is known."""

_UNUSED: Final = Counters(0, 0, 0, 0)


class Allocators:
    """Reads the counters of each device, and logs them.

    Args:
        labels: what the rows' codes stand for.
        push: takes rows (`rows.ROW`).
        fake: tensors are simulated, and no allocator is asked.

    Attributes:
        readers: of each device's allocator; None for a device that has none to ask.
        moved: the codes of devices where something that is followed was allocated or released since the last
            reading.
        risen: by the device's code, the peak that was found inside of the operator that is just over.
    """

    def __init__(self, labels: Labels, push: Callable[[bytes], None], *, fake: bool) -> None:
        self.readers: list[Reader | None] = [None]
        self.moved: set[int] = set()
        self.risen: dict[int, int] = {}
        self._push = push
        self._fake = fake
        self._sample = labels.code(rows.SAMPLE, None)
        self._peak = labels.code(rows.SAMPLE, ALLOCATOR_PEAK)
        # A peak from before is not of this recording.
        self._before = {} if fake else counters.counters_in_use()
        self._latest: dict[int, Counters] = {}

    def add(self, device: torch.device) -> None:
        """The next device; the CPU is the first."""
        code = len(self.readers) * DEVICE_UNIT
        self._latest[code] = self._before.get(device, _UNUSED)
        self.moved.add(code)
        self.readers.append(None if self._fake else counters.reader_of(device))

    def counters_row(self, device: int, context: int) -> bytes:
        """What a device's allocator says now; no row for a device that has none to ask."""
        reader = self.readers[device // DEVICE_UNIT]
        if reader is None:
            return b""
        self.moved.discard(device)
        before = self._latest[device]
        read = self._latest[device] = reader()
        allocated, active, reserved, peak = read
        if peak != before.peak and peak > allocated and peak > before.allocated:
            self.risen[device] = peak
        return rows.ROW.pack(device + rows.COUNTERS, context, allocated, active, reserved)

    def same_counters_row(self, device: int, context: int) -> bytes:
        """The same after an operator that takes no memory (a view): asking costs as much as all the rest."""
        if device in self.moved:
            return self.counters_row(device, context)
        allocated, active, reserved, _ = self._latest[device]
        return rows.ROW.pack(device + rows.COUNTERS, context, allocated, active, reserved)

    def log_risen(self, device: int, code: int, context: int, now: int) -> int:
        """Log what the device had at most inside of the operator that is just over; when that was done.

        `code` is of the SAMPLE row, without the device. The operator's own row comes after it.
        """
        peak = self.risen.pop(device, UNKNOWN)
        if peak == UNKNOWN:
            return now
        latest = self._latest[device]
        # What streams still wait for is active too. The reserved memory grows for what is allocated, and
        # seldom shrinks.
        active = peak if latest.active == latest.allocated else UNKNOWN
        reserved = latest.reserved if latest.reserved >= peak else UNKNOWN
        sample = rows.ROW.pack(code + device, context, now, 0, 0)
        self._push(sample + rows.ROW.pack(device + rows.COUNTERS, context, peak, active, reserved))
        return time.perf_counter_ns()

    def look(self, device: int, code: int, context: int, now: int) -> None:
        """Log what a device had at most since the last reading, if that is known, and what it has now.

        `code` is of the SAMPLE row, without the device.
        """
        counted = self.counters_row(device, context)
        if device in self.risen:
            self.log_risen(device, code, context, now)
            self._push(rows.ROW.pack(self._sample + device, context, now, 0, 0) + counted)

    def look_at_all(self, code: int, context: int, now: int) -> None:
        """The same for every device."""
        for device in self._codes():
            self.look(device, code, context, now)

    def sample(self, context: int) -> None:
        """Log the counters of every device that has them."""
        for device in self._codes():
            counted = self.counters_row(device, context)
            if counted:
                now = self.log_risen(device, self._peak, context, time.perf_counter_ns())
                self._push(rows.ROW.pack(self._sample + device, context, now, 0, 0) + counted)

    def seen(self, device: int, read: Counters) -> None:
        """Somebody else read a device's allocator, and logged what there was to say."""
        self._latest[device] = read
        self.moved.add(device)

    def _codes(self) -> range:
        return range(DEVICE_UNIT, len(self.readers) * DEVICE_UNIT, DEVICE_UNIT)
