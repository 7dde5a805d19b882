"""Sends encoded requests through OpenTelemetry's OTLP exporters, and says what the collector answered.

The exporters bring what a user expects of them: the `OTEL_EXPORTER_OTLP_*` variables, TLS, headers,
compression, timeouts, retries. They take objects to encode, though, and drop the answer. So here, and
nowhere else, parts of them are used that are not public; `tests/unit/exporters/test_otlp_send.py` has a test
for each, which says what is missing when a new version has moved it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import requests
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk import environment_variables as variables
from opentelemetry.sdk.metrics.export import MetricExportResult

from memexport.errors import UsageError
from memexport.exporters._otel_quiet import kept_back

GRPC: Final = "grpc"
HTTP: Final = "http/protobuf"
PROTOCOLS: Final = (GRPC, HTTP)

_METRICS_PATH: Final = "/v1/metrics"
_GRPC_METHOD: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Attributes:
        arrived: the collector has taken it.
        rejected: how many of its points the collector did not want.
        message: why it did not arrive, or what the collector had to say; often empty.
    """

    arrived: bool
    rejected: int = 0
    message: str = ""


class Sender(Protocol):
    """Sends requests to one collector.

    Attributes:
        target: the collector's address.
    """

    target: str

    def send(self, request: bytes) -> Answer:
        """Send it, again where that makes sense, until the exporter's timeout. Raises nothing."""
        ...

    def close(self) -> None:
        """Close the connection. Calling it twice does nothing."""
        ...


def protocol_of_environment(of_signal: str = variables.OTEL_EXPORTER_OTLP_METRICS_PROTOCOL) -> str:
    """What the signal's own variable or `OTEL_EXPORTER_OTLP_PROTOCOL` say, else http/protobuf.

    Raises:
        UsageError: it is none that there is.
    """
    names = (of_signal, variables.OTEL_EXPORTER_OTLP_PROTOCOL)
    protocol = next((value for name in names if (value := os.environ.get(name, "").strip())), HTTP)
    if protocol not in PROTOCOLS:
        raise UsageError(
            f"no OTLP protocol is called {protocol!r}", hint=f"protocols: {', '.join(PROTOCOLS)}"
        )
    return protocol


def sender_to(endpoint: str | None, protocol: str | None) -> Sender:
    """A sender to this address; None: what the environment says.

    Over HTTP, `/v1/metrics` is added to an address that does not end in it.

    Raises:
        UsageError: it is no address, or the protocol is unknown.
    """
    protocol = protocol or protocol_of_environment()
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise UsageError(f"{endpoint!r} is no address of a collector", hint="http://localhost:4318")
    match protocol:
        case "grpc":
            return GrpcSender(endpoint)
        case "http/protobuf":
            return HttpSender(None if endpoint is None else with_metrics_path(endpoint))
        case _:
            raise _unknown(protocol)


def _unknown(protocol: str) -> UsageError:
    return UsageError(f"no OTLP protocol is called {protocol!r}", hint=f"protocols: {', '.join(PROTOCOLS)}")


def with_metrics_path(endpoint: str) -> str:
    """The address of a collector's metrics, as OTEL_EXPORTER_OTLP_ENDPOINT is understood."""
    bare = endpoint.rstrip("/")
    return bare if bare.endswith(_METRICS_PATH) else bare + _METRICS_PATH


class HttpSender:
    """Over HTTP, in protobuf."""

    def __init__(self, endpoint: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._answer = b""
        self._content_type = ""
        self._exporter = OTLPMetricExporter(endpoint=endpoint)
        session_of(self._exporter).hooks["response"].append(self._remember)
        self.target: str = self._exporter._endpoint

    def send(self, request: bytes) -> Answer:
        """Send it."""
        with kept_back():
            result = self._exporter._client.export(request)
        if result.status_code is None:
            return Answer(False, message=_innermost(result.error))
        # The exporter takes a redirection, which it does not follow, for a success.
        if not 200 <= result.status_code < 300:
            return Answer(False, message=f"HTTP {result.status_code} {result.reason or ''}".strip())
        if self._content_type.startswith("text/html"):
            return Answer(False, message="it answers with a web page: this is no collector")
        return _understood(self._answer)

    def close(self) -> None:
        """Close the connection."""
        with kept_back():
            self._exporter.shutdown()

    def _remember(self, response: requests.Response, *_: Any, **__: Any) -> None:
        self._answer = response.content
        self._content_type = response.headers.get("content-type", "")


def session_of(exporter: Any) -> requests.Session:
    """The session of an OTLP exporter over HTTP: its own, or that of a credential provider."""
    session: requests.Session = exporter._client._transport._session
    return session


class GrpcSender:
    """Over gRPC."""

    def __init__(self, endpoint: str | None) -> None:
        self._exporter = _raw_exporter(endpoint, self._remember)
        self._answer = b""
        self._error: Any = None
        self.target: str = self._exporter._endpoint

    def send(self, request: bytes) -> Answer:
        """Send it."""
        self._error = None
        with kept_back() as messages:
            result = self._exporter._export(request)
        if result is MetricExportResult.SUCCESS:
            return _understood(self._answer)
        if self._error is not None:
            return Answer(False, message=f"{self._error.code().name}: {self._error.details()}")
        return Answer(False, message=messages[-1] if messages else "")

    def close(self) -> None:
        """Close the connection."""
        with kept_back():
            self._exporter.shutdown()

    def _remember(self, answer: bytes, error: Exception | None) -> None:
        self._answer, self._error = answer, error


def _raw_exporter(endpoint: str | None, remember: Callable[[bytes, Exception | None], None]) -> Any:
    """The gRPC exporter, taking encoded requests where it takes objects to encode."""
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    class RawExporter(OTLPMetricExporter):
        _client: Any

        def _initialize_channel_and_stub(self) -> None:
            super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]  # theirs is not annotated
            self._client = _RawStub(self._channel, remember)

        def _translate_data(self, data: Any) -> Any:
            return data

        def _count_data(self, data: Any) -> int:  # noqa: ARG002 - the exporter's interface
            return 0

    return RawExporter(endpoint=endpoint)


class _RawStub:
    """The collector's service, in bytes."""

    def __init__(self, channel: Any, remember: Callable[[bytes, Exception | None], None]) -> None:
        self._export = channel.unary_unary(_GRPC_METHOD)
        self._remember = remember

    def Export(self, request: bytes, **options: Any) -> bytes:  # noqa: N802 - the service's name for it
        import grpc

        try:
            answer: bytes = self._export(request, **options)
        except grpc.RpcError as error:
            self._remember(b"", error)
            raise
        self._remember(answer, None)
        return answer


def _understood(answer: bytes) -> Answer:
    """An answer to a request that arrived; one that cannot be read says nothing."""
    try:
        partial = ExportMetricsServiceResponse.FromString(answer).partial_success
    except Exception:  # whatever the answer is, the points have arrived
        return Answer(True)
    return Answer(True, partial.rejected_data_points, partial.error_message)


def _innermost(error: BaseException | None) -> str:
    """What went wrong in the end: requests wraps urllib3's errors, which wrap the system's."""
    message = ""
    while error is not None:
        message = getattr(error, "strerror", None) or str(error) or type(error).__name__
        inner = getattr(error, "reason", None) or (error.args[0] if error.args else None)
        error = inner if isinstance(inner, BaseException) else error.__cause__
    return message
