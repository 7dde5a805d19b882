"""Exports metrics of a recording to OpenTelemetry while it runs."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from memexport.errors import UsageError
from memexport.exporters._otel_fold import FoldOptions
from memexport.exporters._otlp_resource import process_facts
from memexport.model import EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from memexport.exporters._otel_feed import Feed
    from memexport.exporters._otel_instruments import Instruments
    from memexport.exporters._otel_provider import OwnProvider
    from memexport.exporters._otel_snapshot import Tallied
    from memexport.exporters._otel_spans import StepSpans

log = logging.getLogger("memexport")

_ABORT_S: Final = 0.5


class OTelExporter:
    """Exports memory, modules, operators and steps of a running program as OpenTelemetry metrics.

    ```python
    with memexport.Tracker(model, exporters=[memexport.OTelExporter()]) as tracker:
        ...
    ```

    The training thread neither waits for the network nor sees an error: batches are added up in the export
    thread, and exported by the thread of a metric reader. A collector that is down, slow or refuses costs one
    warning in the log "memexport". Processes that are forked from this one export nothing.

    Args:
        meter_provider: where the metrics go. None: the MeterProvider that the application has set by the
            time of the first operator; if it has not, one as the standard environment variables describe it
            (`OTEL_EXPORTER_OTLP_ENDPOINT`, ...): by default, OTLP over HTTP to this machine, every 60 s.
        module_depth: components of a module's name that count; what is deeper is added to its parent.
        top_modules: modules with series of their own, at most 50: the first to come, the largest first. The
            rest are "other".
        shutdown_timeout: seconds that the end of a recording waits for the last metrics to arrive.
        traces: export each training step as a span too, with its memory, and its phases as spans in it.
        tracer_provider: where these go; None: as for metrics, the application's or one of the environment.

    Raises:
        UsageError: OpenTelemetry is not installed, or an option is out of its range.
    """

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        module_depth: int = 2,
        top_modules: int = 50,
        *,
        shutdown_timeout: float = 5.0,
        traces: bool = False,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        check_installed()
        self._has_traces = traces or tracer_provider is not None
        self._is_tracing = False
        self._tracer_provider = tracer_provider
        self._tables = Tables()
        self._spans: StepSpans | None = None
        self._provider = meter_provider
        self._options = FoldOptions(module_depth, top_modules)
        self._shutdown_timeout_s = shutdown_timeout
        self._info: RecordingInfo | None = None
        self._feed: Feed | None = None
        self._instruments: Instruments | None = None
        self._own: OwnProvider | None = None
        self._used: Any = None
        self._is_connected = False

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Begin to add up. Nothing is exported before the first operator."""
        from memexport.exporters._otel_feed import Feed

        self._info, self._tables = info, tables
        self._is_connected = False
        self._is_tracing = self._has_traces
        self._feed = Feed(info, tables, self._options, self._record)

    def write(self, batch: EventBatch) -> None:
        """Add a batch up; it is exported when metrics are next collected."""
        if self._is_tracing:
            self._trace(batch)
        if self._feed is not None:
            self._feed.add(batch)
            if not self._is_connected and (batch.kind == EventKind.OPERATOR).any():
                self._connect()

    def watch(self, progress: Callable[[], RecordingEnd]) -> None:
        """Ask at each collection for retries, failed requests and dropped events, known else at the end.

        Called after `begin`, by whoever knows them; `progress` is called in other threads.
        """
        if self._feed is not None:
            self._feed.watch(progress)

    def end(self, end: RecordingEnd) -> None:
        """Export once more, waiting no longer than `shutdown_timeout`."""
        if self._feed is not None:
            self._feed.end(end)
            self._connect()
        self._finish(self._shutdown_timeout_s)

    def abort(self) -> None:
        """Stop to export; what was not exported yet gets a moment."""
        self._finish(_ABORT_S)

    def _trace(self, batch: EventBatch) -> None:
        """Export the steps of a batch as spans; what goes wrong is logged, once."""
        try:
            if self._spans is None and self._info is not None:
                from memexport.exporters._otel_spans import StepSpans

                self._spans = StepSpans(self._info, self._tables, self._tracer_provider)
            if self._spans is not None:
                self._spans.add(batch)
        except Exception as error:  # the training must not end for it
            self._is_tracing = False
            log.warning("memexport: no more spans are exported: %s", error)

    def _connect(self) -> None:
        """Find the provider and feed its instruments; what is wrong with the environment is logged."""
        if not self._is_connected:
            self._is_connected = True
            try:
                self._feed_provider()
            except Exception as error:  # the training must not end for it
                log.warning("memexport: no metrics are exported: %s", error)

    def _feed_provider(self) -> None:
        # Imported now: it takes most of a second, which is the export thread's.
        from memexport.exporters._otel_instruments import INSTRUMENTS
        from memexport.exporters._otel_provider import SHARED, application_provider

        self._used = self._provider or application_provider()
        if self._used is None and self._info is not None:
            rank = -1 if self._info.rank is None else self._info.rank
            self._own = SHARED.borrow(process_facts(self._info, rank))
            if not self._own.exports:
                return  # the environment has turned it off
            self._used = self._own.provider
        if self._feed is not None:
            self._instruments = INSTRUMENTS.free_one(self._used)
            self._instruments.feed_from(self._feed)

    def _record(self, tallied: Tallied) -> None:
        if self._instruments is not None:
            self._instruments.record(tallied)

    def _finish(self, timeout_s: float) -> None:
        spans, self._spans = self._spans, None
        if spans is not None:
            began = time.monotonic()
            spans.close(timeout_s)
            timeout_s = max(_ABORT_S, timeout_s - (time.monotonic() - began))
        self._finish_metrics(timeout_s)

    def _finish_metrics(self, timeout_s: float) -> None:
        used, self._used = self._used, None
        own, self._own = self._own, None
        instruments, self._feed = self._instruments, None
        if own is not None or used is not None:
            from memexport.exporters._otel_provider import SHARED, flush

            if own is not None:
                SHARED.give_back(own, timeout_s)
            else:
                flush(used, timeout_s)
        if instruments is not None:
            instruments.let_go()
            self._instruments = None


def check_installed() -> None:
    """Look for OpenTelemetry's SDK without importing it.

    Raises:
        UsageError: it is not installed.
    """
    for package in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is not installed", hint="pip install 'memexport[otlp]'")
