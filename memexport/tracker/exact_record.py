"""The allocator's own record: every allocation and release, also those inside an operator.

torch's C++ code reports them to the profiler that is on in a thread. The one switched on here is that behind
`torch.autograd.profiler_legacy`. To be read it must be switched off and on again, as must `torch.profiler`'s
(Kineto's); but that takes 2 µs and then 1 µs an event instead of 300 and 7, and prints nothing on stderr.
Both are told the same by the same allocator.

(That profiler could also be read while it is on. But what it registered for operators is then never taken
away, and takes the next profiler for itself.)
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from memexport.errors import UsageError
from memexport.tracker import legacy_profiler, rows
from memexport.tracker.threads import NO_TASK, graph_task

# torch's types for the profiler are not declared.
_autograd: Any = torch._C._autograd
_profiler: Any = torch._C._profiler

_EVERY_NS: Final = 20_000_000
"""How often the record is read: until then it takes about 500 bytes an event."""


def require(*, is_simulated: bool) -> None:
    """Make sure that the record can be switched on in this thread.

    Raises:
        UsageError: tensors are simulated, a profiler is on, this torch has no such record, or cannot keep one
            beside this accelerator.
    """
    if is_simulated:
        why = "simulated tensors take no memory, so no allocator has anything to tell"
    elif not hasattr(_autograd, "_enable_profiler_legacy") or not hasattr(_autograd, "_profiler_enabled"):
        why = f"torch {torch.__version__} does not give its allocator's record"
    elif _autograd._profiler_enabled():
        why = "a torch profiler is on, and a thread can have only one"
    elif legacy_profiler.prints_of_accelerator():
        why = "torch would print a line for each allocation on an accelerator that is none of CUDA's"
    else:
        return
    raise UsageError(f'capture="allocator" does not work here: {why}', hint='capture="operators"')


class AllocatorRecord:
    """The record of the thread that starts it.

    Args:
        push: takes MEMORY rows (`rows`).
        device: the code of the accelerator that the record speaks of; 0 for none.

    Attributes:
        is_on: whether it was started and not stopped yet.
        due_ns: when to `drain` next, by `time.perf_counter_ns`.
    """

    def __init__(self, push: Callable[[bytes], None], device: Callable[[], int] = lambda: 0) -> None:
        self.is_on = False
        self.due_ns = 0
        self._push = push
        self._device = device
        self._thread = 0

    def start(self) -> None:
        """Switch it on, and log that it has nothing to tell of the time before; see `require`."""
        self._thread = threading.get_ident()
        self._switch_on()
        self.is_on = True
        self._log([])

    def drain(self) -> None:
        """Log what was recorded until now, and that it is all; do nothing where that cannot be known."""
        if self._can_switch():
            self._log(self._take(self._switch_on))

    def stop(self) -> bool:
        """Log the rest and switch it off, if that can be done here; whether it is off now."""
        if self._can_switch():
            self.is_on = False
            self._log(self._take(lambda: _own_operators(is_on=True)))
        return not self.is_on

    def _can_switch(self) -> bool:
        # What runs in a backward goes back to the profiler that was on when it began.
        return self.is_on and threading.get_ident() == self._thread and graph_task() == NO_TASK

    def _switch_on(self) -> None:
        # Every operator would be recorded too, at three times the cost. Nobody else misses them: another
        # profiler cannot be on here.
        _own_operators(is_on=False)
        state, settings = _profiler.ProfilerState.CPU, _profiler._ExperimentalConfig()
        config = _profiler.ProfilerConfig(state, False, True, False, False, False, settings)
        _autograd._enable_profiler_legacy(config)
        self.due_ns = time.perf_counter_ns() + _EVERY_NS

    def _take(self, then: Callable[[], None]) -> list[Any]:
        """The events since it was switched on, which it is not any more; `then` is called at once."""
        # Collecting garbage may release tensors, and would go through the events again and again.
        collects = gc.isenabled()
        gc.disable()
        try:
            threads = _autograd._disable_profiler_legacy()
            then()
        finally:
            if collects:
                gc.enable()
        return [event for thread in threads for event in thread]

    def _log(self, events: list[Any]) -> None:
        """A MEMORY row for each event that is about memory, in the order of time, and one that ends them."""
        moved_bytes = np.array([event.cpu_memory_usage() for event in events], np.int64)
        device = self._device()
        on_device = np.array([event.cuda_memory_usage() if device else 0 for event in events], np.int64)
        moved_bytes += on_device  # an event is about one of the two
        moves = np.flatnonzero(moved_bytes)
        time_us = np.array([events[at].start_us() for at in moves.tolist()], np.float64)
        record = np.zeros(len(moves) + 1, rows.ROW_DTYPE)
        record["code"] = rows.MEMORY
        record["code"][:-1] += np.where(on_device[moves], device, 0).astype(np.uint32)
        record["time"][:-1] = np.rint(time_us * 1e3).astype(np.int64) - _clock_offset_ns()
        record["first"][:-1] = moved_bytes[moves]
        record[:-1].sort(order="time", kind="stable")
        record["time"][-1] = time.perf_counter_ns()
        self._push(record.tobytes())


def _clock_offset_ns() -> int:
    """Unix time less `time.perf_counter_ns`, by that of some readings which was interrupted the least.

    It changes when somebody sets the clock.
    """
    readings = []
    for _ in range(5):
        before, unix, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        readings.append((after - before, unix - (before + after) // 2))
    return min(readings)[1]


def _own_operators(*, is_on: bool) -> None:
    """Let torch tell profilers in this thread of operators, or not."""
    record: Any = torch.autograd
    record._enable_record_function(is_on)
