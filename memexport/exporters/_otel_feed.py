"""A running recording as OpenTelemetry's callbacks see it: in one collection, all see the same moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Final

from memexport.exporters import _otel_metrics as metrics
from memexport.exporters._otel_fold import FoldOptions, MetricsFold
from memexport.exporters._otel_metrics import Metric
from memexport.exporters._otel_snapshot import Attributes, Tallied
from memexport.exporters._otel_system import gpu_bytes_in_use, resident_bytes
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

Values = dict[Attributes, int]

_READERS: Final = 16
"""How many readers can have peaks of their own; more than anyone has."""


class Feed:
    """Takes the batches of a recording from one thread and answers callbacks in others.

    An SDK collects by asking every instrument once. So a snapshot serves each metric once: whoever asks for
    a metric again has begun another collection, which gets another snapshot.

    Args:
        record: is given what was counted for the histograms, when a collection begins.
    """

    def __init__(
        self, info: RecordingInfo, tables: Tables, options: FoldOptions, record: Callable[[Tallied], None]
    ) -> None:
        self._info = info
        self._fold = MetricsFold(info, tables, options)
        self._record = record
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._peaks = _Peaks()
        self._snapshot: dict[Metric, Values] = {}
        self._served: set[Metric] = set(metrics.METRICS)
        self._progress: Callable[[], RecordingEnd] | None = None

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        with self._lock:
            self._fold.add(batch)

    def watch(self, progress: Callable[[], RecordingEnd]) -> None:
        """Ask at each collection for what is otherwise known only at the end."""
        self._progress = progress

    def end(self, end: RecordingEnd) -> None:
        """Take what is known only at the end."""
        with self._lock:
            self._progress = None
            self._fold.end(end)

    def values(self, metric: Metric) -> Values:
        """The series of a metric, at the moment at which the collection began; none in a fork."""
        if os.getpid() != self._pid:
            return {}
        with self._lock:
            if metric in self._served:
                self._snapshot, self._served = self._collected(), set()
            self._served.add(metric)
            return self._snapshot.get(metric, {})

    def _collected(self) -> dict[Metric, Values]:
        if self._progress is not None:
            self._fold.end(self._progress())
        found: dict[Metric, Values] = {metrics.PROCESS: {(): resident_bytes()}}
        for snapshot in self._fold.collect().values():
            for numbers in snapshot.numbers:
                values = dict(zip(numbers.attributes, numbers.values.tolist(), strict=True))
                found.setdefault(numbers.metric, {}).update(values)
            for tallied in snapshot.tallied:
                self._record(tallied)
        found[metrics.GPU_USAGE] = gpu_bytes_in_use(self._info.devices)
        return self._peaks.of_this_reader(found)


class _Peaks:
    """Peaks since each reader's last collection, whoever else has collected in between.

    A reader is known by its thread. One that has not been seen yet, as a pull in a thread of its own, gets
    the peaks since anyone's last collection.
    """

    def __init__(self) -> None:
        self._missed: dict[int, dict[Metric, Values]] = {}

    def of_this_reader(self, found: dict[Metric, Values]) -> dict[Metric, Values]:
        reader = threading.get_ident()
        missed = self._missed.pop(reader, {})
        for others in self._missed.values():
            for metric, values in _peaks_in(found):
                others[metric] = _higher(values, others.get(metric, {}))
        self._missed[reader] = {}
        if len(self._missed) > _READERS:
            del self._missed[next(iter(self._missed))]
        higher = {metric: _higher(values, missed.get(metric, {})) for metric, values in _peaks_in(found)}
        return {**found, **higher}


def _peaks_in(found: dict[Metric, Values]) -> Iterator[tuple[Metric, Values]]:
    return ((metric, found[metric]) for metric in metrics.PEAKS.values() if metric in found)


def _higher(values: Values, others: Values) -> Values:
    return {attributes: max(value, others.get(attributes, value)) for attributes, value in values.items()}
