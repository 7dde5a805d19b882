"""Where live metrics go: through the application's MeterProvider, or through one made of the environment.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from opentelemetry import metrics
from opentelemetry.environment_variables import OTEL_METRICS_EXPORTER
from opentelemetry.sdk import environment_variables as variables
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from memexport.exporters._otel_metrics import SCOPE
from memexport.exporters._otel_quiet import kept_back
from memexport.exporters._otlp_resource import Facts

log = logging.getLogger("memexport")

SHUTDOWN_S: Final = 5.0
"""The longest that the end of a recording waits for the last metrics to arrive."""
FAILING_S: Final = 1.0
"""The longest that it waits where the metrics before did not arrive."""
_ENDING_S: Final = 1.0
"""How long a thread has to end when nothing keeps it any more."""


def over_environment(facts: Facts) -> Facts:
    """The facts, but what `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` say instead."""
    said: Any = OTELResourceDetector().detect().attributes
    return {**facts, **said}


def application_provider() -> metrics.MeterProvider | None:
    """The MeterProvider that the application has set; None if it has not."""
    from opentelemetry.metrics._internal import _ProxyMeterProvider

    provider = metrics.get_meter_provider()
    return None if isinstance(provider, _ProxyMeterProvider) else provider


def is_disabled() -> bool:
    """Whether the environment has turned the SDK off."""
    return os.environ.get(variables.OTEL_SDK_DISABLED, "").strip().lower() == "true"


class OwnProvider:
    """A MeterProvider as the environment describes it, for all trackers of this process.

    Its thread exports; nothing that goes wrong there reaches anybody, but is logged once and counted.

    Args:
        facts: about this process.

    Attributes:
        exports: whether it has any exporter.
        failed_exports: how many there were so far.
    """

    def __init__(self, facts: Facts) -> None:
        self.failed_exports = 0
        self._is_failing = False
        self._pid = os.getpid()
        watched = [_Watched(exporter, abort, self._exported) for exporter, abort in _exporters()]
        readers = [PeriodicExportingMetricReader(each) for each in watched]
        self._threads = [getattr(reader, "_daemon_thread", None) for reader in readers]
        self.exports = bool(readers)
        self.provider = MeterProvider(
            metric_readers=readers,
            resource=Resource.create(dict(over_environment(facts))),
            views=_views(),
            shutdown_on_exit=False,
        )
        atexit.register(self.close)

    def close(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Export what is left, and end the thread; both at most for so long. Does nothing in a fork."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        if self._is_failing:
            timeout_s = min(timeout_s, FAILING_S)
        try:
            self.provider.shutdown(timeout_millis=timeout_s * 1000)
        except Exception as error:  # of whichever exporter
            self._exported(str(error))
        for thread in self._threads:
            if thread is not None:
                thread.join(_ENDING_S)
        if self.failed_exports:
            log.warning("memexport: %d exports of metrics failed in all", self.failed_exports)

    def _exported(self, failure: str | None) -> None:
        """What became of an export: None, or why it failed."""
        self._is_failing = failure is not None
        self.failed_exports += self._is_failing
        if self._is_failing and self.failed_exports == 1:
            log.warning("memexport: metrics cannot be exported, the program goes on: %s", failure)


class _Watched(MetricExporter):
    """Hands over to another exporter, in this process only, and says what has failed.

    Args:
        abort: ends what the exporter still waits for.
        exported: is told why an export failed, or None when it has not.
    """

    def __init__(
        self, exporter: MetricExporter, abort: Callable[[], None], exported: Callable[[str | None], None]
    ) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._abort = abort
        self._exported = exported
        self._pid = os.getpid()

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any
    ) -> MetricExportResult:
        if os.getpid() != self._pid:
            return MetricExportResult.SUCCESS
        with kept_back() as messages:
            try:
                result = self._exporter.export(metrics_data, timeout_millis, **options)
            except Exception as error:  # the training must not end for it
                result = MetricExportResult.FAILURE
                messages.append(repr(error))
        # The first says what went wrong, the later ones that it did so again.
        reason = messages[0] if messages else "the exporter does not say why"
        self._exported(None if result is MetricExportResult.SUCCESS else reason)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **options: Any) -> None:
        with kept_back():
            self._exporter.shutdown(timeout_millis, **options)
        self._abort()


def _exporters() -> Iterator[tuple[MetricExporter, Callable[[], None]]]:
    """Those that the environment names, and what aborts each; none if it has turned the SDK off."""
    if is_disabled():
        return
    for name in (os.environ.get(OTEL_METRICS_EXPORTER) or "otlp").split(","):
        match name.strip():
            case "otlp":
                yield _otlp_exporter()
            case "console":
                yield ConsoleMetricExporter(), _nothing
            case "none":
                pass
            case unknown:
                log.warning("memexport: %s=%s is not known here", OTEL_METRICS_EXPORTER, unknown)


def _otlp_exporter() -> tuple[MetricExporter, Callable[[], None]]:
    from memexport.exporters._otlp_abort import abortable
    from memexport.exporters._otlp_send import GRPC, protocol_of_environment, session_of

    if protocol_of_environment() == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as over_grpc

        return over_grpc.OTLPMetricExporter(), _nothing  # closing its channel is enough
    from opentelemetry.exporter.otlp.proto.http import metric_exporter as over_http

    exporter = over_http.OTLPMetricExporter()
    return exporter, abortable(session_of(exporter))


def _nothing() -> None:
    """There is nothing to abort."""


def _views() -> list[View]:
    """Exponential buckets, unless the environment asks for others."""
    if os.environ.get(variables.OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION):
        return []
    exponential = ExponentialBucketHistogramAggregation()
    return [View(instrument_type=Histogram, meter_name=SCOPE, aggregation=exponential)]


class SharedProvider:
    """Lends the process's own provider to several trackers; the last one to give it back closes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: OwnProvider | None = None
        self._pid = 0
        self._borrowers = 0

    def borrow(self, facts: Facts) -> OwnProvider:
        """The provider, made anew if nobody has it now."""
        with self._lock:
            if self._own is None or self._pid != os.getpid():
                self._own, self._pid, self._borrowers = OwnProvider(facts), os.getpid(), 0
            self._borrowers += 1
            return self._own

    def give_back(self, own: OwnProvider, timeout_s: float) -> None:
        """Export what is left, at most for so long."""
        with self._lock:
            if own is not self._own:
                return
            self._borrowers -= 1
            if self._borrowers == 0:
                self._own = None
        if self._own is None:
            own.close(timeout_s)
        else:
            flush(own.provider, timeout_s)


def flush(provider: Any, timeout_s: float, signal: str = "metrics") -> None:
    """Have a provider export what it has, at most for so long; its exporters may take longer."""

    def force_flush() -> None:
        try:
            provider.force_flush(timeout_millis=int(timeout_s * 1000))
        except Exception as error:  # of whichever exporter
            log.warning("memexport: the last %s may not have been exported: %s", signal, error)

    if not hasattr(provider, "force_flush"):
        return
    thread = threading.Thread(target=force_flush, name="memexport flush", daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        waited = time.monotonic() - began
        log.warning("memexport: the last %s were not exported within %.0f s", signal, waited)


SHARED: Final = SharedProvider()
"""Of this process."""
