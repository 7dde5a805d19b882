"""Records the steps that a schedule names, and between them only when each step ended.

Between two windows nothing of ours runs but at the end of a step: no mode, no hooks of modules, and no weak
reference is told of a storage's death. What happened meanwhile is found out when recording goes on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

from memexport.analysis.pauses import NOT_RECORDED
from memexport.schedule import Schedule
from memexport.tracker import rows
from memexport.tracker.capture import Capture
from memexport.tracker.step_counters import StepCounters
from memexport.tracker.stream import DrainThread


class Windows:
    """Pauses a capture and lets it go on, always between two steps.

    Args:
        schedule: says when.
        capture: in the state in which `Capture.start` leaves it, from `start` on.
        drain: takes what is logged.
        register: logs what lives and is not followed yet.

    Attributes:
        steps: how many are over.
        recorded_steps: how many of them were recorded in detail.
    """

    def __init__(
        self, schedule: Schedule, capture: Capture, drain: DrainThread, register: Callable[[], None]
    ) -> None:
        self.steps = 0
        self.recorded_steps = 0
        self._schedule = schedule
        self._capture = capture
        self._drain = drain
        self._register = register
        self._counters = StepCounters(capture)
        self._push, self._pack, self._clock = capture.log_bytes.extend, rows.ROW.pack, time.perf_counter_ns
        self._change: int | None = None
        self._paused_ns: int | None = None
        self._began_ns = 0
        self._context = 0
        self._thread = 0
        self._pid = os.getpid()

    @property
    def is_paused(self) -> bool:
        """Whether the step that runs is not recorded in detail."""
        return self._paused_ns is not None

    def start(self) -> None:
        """The first step begins, in the thread that records."""
        self._thread = threading.get_ident()
        self._change = self._schedule.next_change(0)
        if not self._schedule.records(0):
            self._guarded(self._pause)

    def step(self) -> None:
        """A step is over."""
        self.steps += 1
        if self._paused_ns is None:
            self._capture.step()
            self.recorded_steps += 1
        else:
            # As short as can be: outside of a window this is all that runs.
            now = self._clock()
            row = self._pack(rows.STEP, self._context, now, self._began_ns, 0)
            self._began_ns = now
            self._push(self._counters.rows(self._context, now) + row if self._counters.is_needed else row)
        if self.steps == self._change:
            self._turn()

    def stop(self) -> None:
        """The recording ends; nothing is logged of what died in a pause that it ends in."""
        if self._paused_ns is not None:
            self._log_pause()

    def warnings(self) -> Iterator[str]:
        """What a reader of sums and peaks should know."""
        if self.steps > self.recorded_steps:
            yield (
                f"{self.steps - self.recorded_steps} of {self.steps} steps were not recorded in detail: "
                "what they allocated, and how high they peaked, is not in the sums and peaks"
            )

    def _turn(self) -> None:
        """Pause or go on, as the schedule says of the step that begins."""
        if threading.get_ident() != self._thread or os.getpid() != self._pid:
            self._change = self.steps + 1  # another thread's mode cannot be changed from here
            return
        is_recorded = self._schedule.records(self.steps)
        self._change = self._schedule.next_change(self.steps)
        if self._capture.failed is None and is_recorded == (self._paused_ns is not None):
            self._guarded(self._resume if is_recorded else self._pause)

    def _guarded(self, action: Callable[[], None]) -> None:
        """An error of ours must not reach the program."""
        try:
            action()
        except Exception as error:
            self._capture.fail(error)

    def _pause(self) -> None:
        self._capture.pause()
        self._paused_ns = time.perf_counter_ns()
        self._context = self._capture.running.thread().context
        self._counters.start()
        code = self._capture.labels.code(rows.MARKER, NOT_RECORDED)
        self._log(code, self._paused_ns, 0)
        self._drain.rest()
        self._begin_step()

    def _resume(self) -> None:
        self._capture.survivors.give_back()
        self._register()
        self._capture.storages.sample()
        self._log_pause()
        self._capture.resume()
        self._drain.hurry()
        self._begin_step()

    def _begin_step(self) -> None:
        """What it took to get here is not the step's."""
        self._began_ns = time.perf_counter_ns()
        self._log(rows.BEGINS, self._began_ns, 0)

    def _log_pause(self) -> None:
        code = self._capture.labels.code(rows.SPAN, NOT_RECORDED)
        self._log(code, self._paused_ns or 0, time.perf_counter_ns())
        self._paused_ns = None

    def _log(self, code: int, time_ns: int, first: int) -> None:
        context = self._capture.running.thread().context
        self._push(self._pack(code, context, time_ns, first, 0))
