"""The default capture, and with it the allocator's own record."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from memexport.tracker import rows
from memexport.tracker.capture import Capture
from memexport.tracker.exact_record import AllocatorRecord


class ExactCapture(Capture):
    """Logs, besides what the default capture sees, MEMORY rows; `exact_join` puts the two together."""

    @functools.cached_property
    def record(self) -> AllocatorRecord:
        """The allocator's record."""
        return AllocatorRecord(self.log_bytes.extend)

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
