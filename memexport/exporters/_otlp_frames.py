"""Cuts a recording into intervals: at the end of each, what every metric of every process is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from memexport.errors import UsageError
from memexport.exporters._otel_fold import FoldOptions, MetricsFold
from memexport.exporters._otel_histogram import Buckets, ExponentialHistogram
from memexport.exporters._otel_metrics import Metric
from memexport.exporters._otel_snapshot import Attributes, Ints, Numbers, Snapshot, Tallied
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

INTERVAL_NS: Final = 1_000_000_000
"""The interval unless another is asked for."""


@dataclass(frozen=True)
class Histogram:
    """Every series of a histogram, with all that was counted since the recording began."""

    metric: Metric
    attributes: tuple[Attributes, ...]
    buckets: tuple[Buckets, ...]


@dataclass(frozen=True)
class Frame:
    """The metrics of one process at one time.

    Attributes:
        rank: of the process; −1 where it is not known.
        time_unix_ns: the end of the interval.
    """

    rank: int
    time_unix_ns: int
    numbers: tuple[Numbers, ...]
    histograms: tuple[Histogram, ...]

    @property
    def points(self) -> int:
        """How many data points it has."""
        series = [len(numbers.attributes) for numbers in self.numbers]
        return sum(series) + sum(len(histogram.attributes) for histogram in self.histograms)


Moment = list[Frame]
"""The frames of all processes at one time."""


@dataclass
class _Histograms:
    """The histograms of one process, over its whole time."""

    _series: dict[Metric, dict[Attributes, ExponentialHistogram]] = field(default_factory=dict)

    def add(self, tallied: Tallied) -> None:
        series = self._series.setdefault(tallied.metric, {})
        series.setdefault(tallied.attributes, ExponentialHistogram()).add(tallied.tally)

    def now(self) -> Iterator[Histogram]:
        for metric, series in self._series.items():
            yield Histogram(metric, tuple(series), tuple(one.buckets() for one in series.values()))


class Frames:
    """Takes the batches of a recording and gives the frames of every interval in which something happened.

    Interval n ends at the recording's start + n × its length. An event belongs to the interval in which it
    ended. Of intervals without events, only the one before the next event is given, so that a curve does not
    show a slope where nothing happened.

    Args:
        interval_ns: the length of an interval.

    Attributes:
        begin_ns: when the recording began: what it says, else the end of its first event; −1 before that.

    Raises:
        UsageError: the recording has no clock, or the interval has no length.
    """

    def __init__(
        self, info: RecordingInfo, tables: Tables, options: FoldOptions, interval_ns: int = INTERVAL_NS
    ) -> None:
        if info.clock != "unix":
            raise UsageError(
                "the recording has no clock, and a metric's points need real times",
                hint="its curves can be seen in a trace: memexport convert INPUT -o OUTPUT.pftrace",
            )
        if interval_ns < 1:
            raise UsageError(f"an interval of {interval_ns} ns has no length")
        self.begin_ns = -1 if info.start_time_unix_ns is None else info.start_time_unix_ns
        self._interval_ns = interval_ns
        self._fold = MetricsFold(info, tables, options)
        self._histograms: dict[int, _Histograms] = {}
        self._interval: int | None = None
        self._last_ns = 0

    def add(self, batch: EventBatch) -> Iterator[Moment]:
        """Take the next batch; the frames of the intervals that are over by it, in order."""
        if not len(batch):
            return
        intervals = self._intervals(batch)
        current = int(intervals[0]) if self._interval is None else self._interval
        begin = 0
        for cut in np.flatnonzero(np.diff(intervals, prepend=current)).tolist():
            self._fold.add(batch.select(slice(begin, cut)))
            yield from self._between(current, int(intervals[cut]))
            begin, current = cut, int(intervals[cut])
        self._fold.add(batch.select(slice(begin, None)))
        self._interval = current

    def end(self, end: RecordingEnd) -> Iterator[Moment]:
        """The frames at the end of the last event; none of a recording without events."""
        if self._interval is not None:
            self._fold.end(end)
            yield self._moment(self._last_ns)

    def _intervals(self, batch: EventBatch) -> Ints:
        """The number of the interval in which each event ended; never less than that of one before it."""
        ends = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
        if self.begin_ns < 0:
            self.begin_ns = int(ends[0])
        # Totals last from the beginning to the end of an interval: that must be later.
        ends = np.maximum.accumulate(np.maximum(ends, max(self._last_ns, self.begin_ns + 1)))
        self._last_ns = int(ends[-1])
        intervals: Ints = -((self.begin_ns - ends) // self._interval_ns)
        return intervals

    def _between(self, interval: int, next_interval: int) -> Iterator[Moment]:
        """Frames of the interval that is over, and of the one before the next if that is another."""
        for number in sorted({interval, next_interval - 1}):
            yield self._moment(self.begin_ns + number * self._interval_ns)

    def _moment(self, time_unix_ns: int) -> Moment:
        return [self._frame(rank, time_unix_ns, snapshot) for rank, snapshot in self._fold.collect().items()]

    def _frame(self, rank: int, time_unix_ns: int, snapshot: Snapshot) -> Frame:
        histograms = self._histograms.setdefault(rank, _Histograms())
        for tallied in snapshot.tallied:
            histograms.add(tallied)
        return Frame(rank, time_unix_ns, snapshot.numbers, tuple(histograms.now()))
