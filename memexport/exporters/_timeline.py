"""Where the events of a recording lie on a trace's time axis."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.model import INDEX_CLOCK_NS, EventBatch, EventKind, RecordingInfo

Nanoseconds = npt.NDArray[np.int64]

INDEX_LENGTH_NS: Final = INDEX_CLOCK_NS * 9 // 10
"""How long an operator without a duration is drawn in a recording without a clock: nearly up to the next
event. The rest is room for the spans that begin with that one."""

_SPAN_MARGIN_NS: Final = 1_000_000_000


class Timeline:
    """Gives each event its begin and end in nanoseconds after the trace's origin, both ≥ 0.

    The origin is the recording's start. Where that is unknown, it lies a second before the first event,
    because spans arrive after the events in them; and without a clock, one place before the first event.

    Attributes:
        origin_unix_ns: the Unix time of 0; None before the first batch.
        clipped_events: how many events lay before the origin and were moved to it.
    """

    def __init__(self, info: RecordingInfo) -> None:
        self._has_clock = info.clock == "unix"
        self._start_unix_ns = info.start_time_unix_ns
        self.origin_unix_ns: int | None = None
        self.clipped_events = 0

    def place(self, batch: EventBatch) -> tuple[Nanoseconds, Nanoseconds]:
        """The begin and the end of every event. An unknown duration is drawn as 0 where there is a clock."""
        if self.origin_unix_ns is None:
            self.origin_unix_ns = self._origin(batch.time_unix_ns)
        begin = batch.time_unix_ns - self.origin_unix_ns
        length = batch.duration_ns
        if length.min(initial=0) < 0:
            length = np.where(length < 0, self._assumed_length(batch), length)
        early = begin < 0
        if early.any():
            self.clipped_events += int(early.sum())
        return np.maximum(begin, 0), np.maximum(begin + length, 0)

    def _origin(self, times: npt.NDArray[Any]) -> int:
        first = int(times.min(initial=2**63 - 1))
        if not self._has_clock:
            return -INDEX_CLOCK_NS
        if self._start_unix_ns is None:
            return first - _SPAN_MARGIN_NS
        return min(self._start_unix_ns, first)

    def _assumed_length(self, batch: EventBatch) -> npt.NDArray[np.int64]:
        length = 0 if self._has_clock else INDEX_LENGTH_NS
        return np.where(batch.kind == EventKind.OPERATOR, length, 0)
