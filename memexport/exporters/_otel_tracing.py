"""A TracerProvider as the environment describes it; see `_otel_provider` for that of metrics."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)

from memexport.exporters._otel_provider import FAILING_S, SHUTDOWN_S, is_disabled, over_environment
from memexport.exporters._otel_quiet import kept_back
from memexport.exporters._otlp_resource import Facts

log = logging.getLogger("memexport")


class OwnTracing:
    """A provider whose thread exports; what goes wrong there is logged once and reaches nobody.

    Args:
        facts: about this process.
    """

    def __init__(self, facts: Facts) -> None:
        self._pid = os.getpid()
        self._watched = [_Watched(exporter, abort) for exporter, abort in _exporters()]
        self.provider = TracerProvider(
            resource=Resource.create(dict(over_environment(facts))), shutdown_on_exit=False
        )
        for each in self._watched:
            self.provider.add_span_processor(BatchSpanProcessor(each))
        atexit.register(self.close)

    def close(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Export what is left and end, at most for so long. Does nothing in a fork, or a second time."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        if any(each.is_failing for each in self._watched):
            timeout_s = min(timeout_s, FAILING_S)
        # The SDK would wait for thirty seconds.
        thread = threading.Thread(target=self.provider.shutdown, name="memexport spans", daemon=True)
        thread.start()
        thread.join(timeout_s)
        for each in self._watched:
            each.abandon()
        thread.join(FAILING_S)


class _Watched(SpanExporter):
    """Hands over to another exporter, in this process only.

    Args:
        abort: ends what the exporter still waits for.

    Attributes:
        is_failing: the last export failed.
    """

    def __init__(self, exporter: SpanExporter, abort: Callable[[], None]) -> None:
        self.is_failing = False
        self._exporter = exporter
        self._abort = abort
        self._is_over = False
        self._has_warned = False
        self._pid = os.getpid()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if os.getpid() != self._pid:
            return SpanExportResult.SUCCESS
        if self._is_over:
            return SpanExportResult.FAILURE
        with kept_back() as messages:
            try:
                result = self._exporter.export(spans)
            except Exception as error:  # the training must not end for it
                result = SpanExportResult.FAILURE
                messages.append(repr(error))
        self.is_failing = result is not SpanExportResult.SUCCESS
        if self.is_failing and not self._has_warned:
            self._has_warned = True
            reason = messages[0] if messages else "the exporter does not say why"
            log.warning("memexport: spans cannot be exported, the program goes on: %s", reason)
        return result

    def abandon(self) -> None:
        """Wait for nothing any more. Calling it twice does nothing."""
        if not self._is_over:
            self._is_over = True
            with kept_back():
                self._exporter.shutdown()
            self._abort()

    def shutdown(self) -> None:
        self.abandon()


def _exporters() -> Iterator[tuple[SpanExporter, Callable[[], None]]]:
    """Those that the environment names, and what aborts each; none if it has turned the SDK off."""
    if is_disabled():
        return
    for name in (os.environ.get(OTEL_TRACES_EXPORTER) or "otlp").split(","):
        match name.strip():
            case "otlp":
                yield _otlp_exporter()
            case "console":
                yield ConsoleSpanExporter(), _nothing
            case "none":
                pass
            case unknown:
                log.warning("memexport: %s=%s is not known here", OTEL_TRACES_EXPORTER, unknown)


def _otlp_exporter() -> tuple[SpanExporter, Callable[[], None]]:
    from memexport.exporters._otlp_abort import abortable
    from memexport.exporters._otlp_send import GRPC, protocol_of_environment, session_of

    if protocol_of_environment(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        return over_grpc.OTLPSpanExporter(), _nothing  # closing its channel is enough
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

    exporter = over_http.OTLPSpanExporter()
    return exporter, abortable(session_of(exporter))


def _nothing() -> None:
    """There is nothing to abort."""
