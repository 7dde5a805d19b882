"""What a recording says of itself at its end: what is missing, what cannot be vouched for, what failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memexport.model import RecordingEnd
from memexport.tracker import compiled, counters
from memexport.tracker.capture import Capture
from memexport.tracker.coverage import PeakCoverage
from memexport.tracker.exact_capture import ExactCapture
from memexport.tracker.stream import ExportThread


class Findings:
    """Notes what allocators say now, and compares that with what they say later.

    Args:
        capture: what watches.
        export: what writes.
        fake: tensors are simulated, and no allocator is asked.
    """

    def __init__(self, capture: Capture, export: ExportThread, *, fake: bool) -> None:
        self._capture = capture
        self._export = export
        self._fake = fake
        self._coverage = PeakCoverage()
        self._failures = counters.Failures()

    def end(
        self, highest_bytes: Mapping[str, int], ooms: int, pauses: Iterable[str], *, is_all_read: bool
    ) -> RecordingEnd:
        """What the end would say now.

        Args:
            highest_bytes: the most that was read, by device.
            ooms: how many requests were seen to fail.
            pauses: sentences about what was not recorded in detail.
            is_all_read: the highest reading is not still to come.
        """
        real = [] if self._fake else self._capture.storages.devices
        warnings = list(self._export.failures)
        if self._capture.failed is not None:
            warnings.append(f"recording stopped before the program did: {self._capture.failed!r}")
        if is_all_read:
            warnings += self._coverage.warnings(real, highest_bytes)
        if isinstance(self._capture, ExactCapture):
            warnings += self._capture.warnings()
        elif "cpu" in highest_bytes and not self._fake and compiled.has_own_kernels():
            warnings.append(compiled.WARNING)
        warnings += pauses
        retries, counted = self._failures.since_start(real)
        seen = max(counted or 0, ooms) if ooms else counted
        return RecordingEnd(tuple(warnings), self._export.dropped_events, retries, seen)
