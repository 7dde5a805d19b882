"""The default capture, and with it the allocator's own record."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from memexport.tracker import legacy_profiler, rows
from memexport.tracker.capture import Capture
from memexport.tracker.exact_record import AllocatorRecord
from memexport.tracker.rows import DEVICE_UNIT


class ExactCapture(Capture):
    """Logs, besides what the default capture sees, MEMORY rows; `exact_join` puts the two together."""

    @functools.cached_property
    def record(self) -> AllocatorRecord:
        """The allocator's record."""
        return AllocatorRecord(self.log_bytes.extend, self._recorded_device)

    def _recorded_device(self) -> int:
        """The code of the accelerator whose memory is in the record; 0 if it is not known to be one."""
        devices = self.storages.devices
        found = [at for at, device in enumerate(devices) if device.type == legacy_profiler.KNOWN_TYPE]
        is_read = len(found) == 1 and self.storages.allocators.readers[found[0]] is not None
        return found[0] * DEVICE_UNIT if is_read else 0

    def warnings(self) -> Iterator[str]:
        """Of which devices less is known."""
        others = [str(device) for device in self.storages.devices[1:]]
        if others and not self._recorded_device():
            yield (
                f"{', '.join(others)}: torch's record of allocations is of the CPU and one CUDA device; "
                "of what operators took inside here, only the highest moment is known"
            )

    def start(self) -> None:
        """Switch the record on, then watch; see `exact_record.require`."""
        self.record.start()
        super().start()

    def stop(self) -> None:
        """Log the rest of the record, then stop watching."""
        self.record.stop()
        super().stop()
        self.log_bytes.extend(rows.ROW.pack(rows.MEMORY, 0, time.perf_counter_ns(), 0, 0))

    def _dispatch_function(self) -> Callable[..., Any]:
        dispatch, record, clock = super()._dispatch_function(), self.record, time.perf_counter_ns

        def draining(mode: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            if clock() >= record.due_ns:
                try:
                    record.drain()
                except Exception as error:
                    self.fail(error)
            return dispatch(mode, func, types, args, kwargs)

        return draining

    def _silence(self) -> None:
        super()._silence()
        if self.record.is_on:  # an error somewhere: only the thread that it is on in can switch it off
            self._mode.call(self._switching_off)

    def _switching_off(
        self, _mode: Any, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.record.stop():
            super()._silence()
        return func(*args, **(kwargs or {}))
