"""Writes a recording's metrics as OTLP JSON lines (`.otlp.jsonl`), as a Collector's file exporter does."""

from __future__ import annotations

from collections.abc import Iterable

from memexport.exporters._otel_fold import FoldOptions
from memexport.exporters._otlp_frames import INTERVAL_NS, Frames, Moment
from memexport.exporters._otlp_json import LineEncoder
from memexport.exporters._text import TextFile
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables


class OtlpFileExporter:
    """A line is the MetricsData of one interval: all metrics as they were at its end, with that time.

    Args:
        interval_ns: the length of an interval.
        module_depth: components of a module's name that count.
        top_modules: modules with series of their own, at most 50; the rest are "other".

    Raises:
        UsageError: an option is out of its range.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        interval_ns: int = INTERVAL_NS,
        module_depth: int = 2,
        top_modules: int = 50,
    ) -> None:
        self._file = TextFile(destination)
        self._interval_ns = interval_ns
        self._options = FoldOptions(module_depth, top_modules)

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file.

        Raises:
            UsageError: the recording has no clock.
        """
        self._info = info
        self._frames = Frames(info, tables, self._options, self._interval_ns)
        self._encoder: LineEncoder | None = None
        self._file.open()

    def write(self, batch: EventBatch) -> None:
        """Write the intervals that are over by this batch."""
        self._write(self._frames.add(batch))

    def end(self, end: RecordingEnd) -> None:
        """Write the last interval, up to the last event, and put the file in its place."""
        self._write(self._frames.end(end))
        self._file.close()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._file.discard()

    def _write(self, moments: Iterable[Moment]) -> None:
        for moment in moments:
            if self._encoder is None:
                self._encoder = LineEncoder(self._info, self._frames.begin_ns)
            self._file.write(self._encoder.encode(moment))
