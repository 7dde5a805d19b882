"""The part of a trace to look at first: around the moment at which the most memory was allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from memexport.exporters._timeline import Nanoseconds, Timeline
from memexport.model import EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables


class Window(NamedTuple):
    """A range of a trace's time axis, in nanoseconds."""

    begin_ns: int
    end_ns: int


def window_around(peak_ns: int, step: Window | None, bounds: Window) -> Window | None:
    """What to show: the step with the peak, or a tenth of the trace; a little more than that on each side.

    The UI ignores a window that reaches beyond the trace's bounds, so this one does not. None for a trace of
    no length.
    """
    tenth = (bounds.end_ns - bounds.begin_ns) // 10
    begin, end = step or (peak_ns - tenth // 2, peak_ns + tenth // 2)
    margin = max((end - begin) // 20, 1)
    window = Window(max(begin - margin, bounds.begin_ns), min(end + margin, bounds.end_ns))
    return window if window.begin_ns < window.end_ns else None


class PeakWindow:
    """Finds the window while a trace is written: beside the exporter that writes it, one without a file."""

    def __init__(self) -> None:
        self._peak_bytes = -1
        self._peak_ns = 0
        self._last_ns = 0
        self._step: Window | None = None

    def window(self) -> Window | None:
        """Complete after `end`; None where no device says what is allocated."""
        if self._peak_bytes < 0:
            return None
        return window_around(self._peak_ns, self._step, Window(0, self._last_ns))

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Lay the time axis as the exporters of traces do."""
        self._timeline = Timeline(info)
        self._strings = tables.strings

    def write(self, batch: EventBatch) -> None:
        """Look for a higher peak, and for the step that the highest lies in."""
        begin_ns, end_ns = self._timeline.place(batch)
        self._last_ns = max(self._last_ns, int(end_ns.max(initial=0)))
        self._find_peak(batch, end_ns)
        self._find_step(batch, begin_ns, end_ns)

    def end(self, end: RecordingEnd) -> None:
        """Do nothing: all is known."""

    def abort(self) -> None:
        """Do nothing: there is no file."""

    def _find_peak(self, batch: EventBatch, end_ns: Nanoseconds) -> None:
        allocated = np.where(batch.kind == EventKind.MARKER, -1, batch.allocated_bytes)
        highest = int(allocated.argmax()) if len(allocated) else 0
        if len(allocated) and int(allocated[highest]) > self._peak_bytes:
            self._peak_bytes, self._peak_ns = int(allocated[highest]), int(end_ns[highest])
            self._step = None

    def _find_step(self, batch: EventBatch, begin_ns: Nanoseconds, end_ns: Nanoseconds) -> None:
        """A step's SPAN comes when the step is over, after all that happened in it."""
        name = self._strings.find("step")
        if self._step is not None or name is None:
            return
        is_step = (batch.kind == EventKind.SPAN) & (batch.name == name) & (batch.step >= 0)
        holds = is_step & (begin_ns <= self._peak_ns) & (end_ns >= self._peak_ns)
        for row in np.flatnonzero(holds)[:1].tolist():
            self._step = Window(int(begin_ns[row]), int(end_ns[row]))
