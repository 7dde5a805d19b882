"""A real collector, rotel, on free loopback ports; behind it a sink that keeps what rotel has received."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import socket
import subprocess
import threading
import time
from pathlib import Path

import rotel
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

AGENT = Path(rotel.__file__).with_name("rotel-agent")
SECONDS = 20


def free_port() -> int:
    """A loopback port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(happened, seconds=SECONDS):
    """Wait for it; fail if it takes too long."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Sink:
    """An OTLP/HTTP server that keeps requests, with their headers, and answers as it is told.

    Attributes:
        requests: what came, decoded.
        headers: of each request.
        status: what it answers.
        rejected: how many points it says it rejected.
    """

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.rejected = 0
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                sink.headers.append({name.lower(): value for name, value in self.headers.items()})
                if sink.status == 200:
                    sink.requests.append(ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse()
                if sink.rejected:
                    answer.partial_success.rejected_data_points = sink.rejected
                    answer.partial_success.error_message = "too old"
                content = answer.SerializeToString()
                self.send_response(sink.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class Rotel:
    """The collector, forwarding to a sink. It can be started again on the same ports."""

    def __init__(self, sink: Sink, folder: Path) -> None:
        self.grpc_port, self.http_port = free_port(), free_port()
        self.grpc_url, self.http_url = (
            f"http://127.0.0.1:{port}" for port in (self.grpc_port, self.http_port)
        )
        self._sink = sink
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, protocol: str) -> str:
        """Where it takes this protocol."""
        return self.grpc_url if protocol == "grpc" else self.http_url

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = [
            AGENT, "start", "--pid-file", self._folder / "pid", "--log-file", self._folder / "log",
            "--exporter", "otlp", "--otlp-exporter-protocol", "http",
            "--otlp-exporter-endpoint", self._sink.url,
            "--disable-batching",
            "--otlp-grpc-endpoint", f"127.0.0.1:{self.grpc_port}",
            "--otlp-http-endpoint", f"127.0.0.1:{self.http_port}",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for port in (self.grpc_port, self.http_port):
            wait_until(lambda port=port: _listens(port))

    def stop(self) -> None:
        """Let it forward what it has, and end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS)
            self._process = None


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def metrics_in(requests):
    """Every metric with the resource's attributes that it came with."""
    for request in requests:
        for of_resource in request.resource_metrics:
            resource = attributes_of(of_resource.resource)
            for scope in of_resource.scope_metrics:
                for metric in scope.metrics:
                    yield resource, scope.scope, metric


def points_of(metric):
    """The data points of a metric, whatever its type."""
    return getattr(metric, metric.WhichOneof("data")).data_points


def attributes_of(holder):
    """Attributes as a dictionary."""
    return {pair.key: _plain(pair.value) for pair in holder.attributes}


def _plain(value):
    return getattr(value, value.WhichOneof("value"))


def series_in(requests):
    """The points of each series by time: {(metric, attributes): {time: value}}.

    A histogram's value is (count, sum). Fails if a point came twice.
    """
    found = {}
    for _, _, metric in metrics_in(requests):
        for point in points_of(metric):
            key = (metric.name, tuple(attributes_of(point).items()))
            series = found.setdefault(key, {})
            assert point.time_unix_nano not in series, f"{key} came twice at {point.time_unix_nano}"
            is_number = metric.WhichOneof("data") in ("sum", "gauge")
            series[point.time_unix_nano] = point.as_int if is_number else (point.count, point.sum)
    return found


def requests_in_file(path):
    """The lines of an `.otlp.jsonl` file."""
    return [json_format.ParseDict(json.loads(line), MetricsData()) for line in path.open()]
