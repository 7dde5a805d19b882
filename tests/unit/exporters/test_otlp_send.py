"""Sending through OpenTelemetry's exporters. Each test of a private part says what is missing if it moved."""

from __future__ import annotations

import http.server
import inspect
import os
import threading
from concurrent import futures

import grpc
import pytest
import requests
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as OverHttp
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from memexport.errors import UsageError
from memexport.exporters import _otlp_send as sending
from memexport.exporters._otlp_abort import abortable

REQUEST = ExportMetricsServiceRequest().SerializeToString() + b"\x0a\x00"
PROTOCOLS = ["grpc", "http/protobuf"]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No variable of whoever runs the tests, and no patience."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    return monkeypatch


def partial(rejected, message):
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()


class Server:
    """Answers both protocols with the same; `bodies` is what came."""

    def __init__(self, answer=b"", status=200, code=None, content_type="application/x-protobuf"):
        self.bodies = bodies = []

        class Http(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(status)
                self.send_header("content-length", str(len(answer)))
                self.send_header("content-type", content_type)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        class Grpc(grpc.GenericRpcHandler):
            def service(self, _):
                def handle(request, context):
                    bodies.append(request)
                    if code is not None:
                        context.abort(code, "no")
                    return answer

                return grpc.unary_unary_rpc_method_handler(handle)

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Http)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self._grpc = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Grpc()])
        self._urls = {
            "http/protobuf": f"http://127.0.0.1:{self._http.server_port}",
            "grpc": f"http://127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}",
        }
        self._grpc.start()

    def url(self, protocol):
        return self._urls[protocol]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(0)


def sent(server, protocol):
    """The answer to one request."""
    sender = sending.sender_to(server.url(protocol), protocol)
    try:
        return sender.send(REQUEST)
    finally:
        sender.close()
        sender.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bytes_arrive_as_they_are(protocol):
    with Server() as server:
        assert sent(server, protocol) == sending.Answer(True)
        assert server.bodies == [REQUEST]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_the_collector_rejects_is_read(protocol):
    with Server(partial(7, "too old")) as server:
        assert sent(server, protocol) == sending.Answer(True, 7, "too old")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_that_is_nonsense_is_still_one(protocol):
    with Server(b"\xff\xff\xff") as server:
        assert sent(server, protocol).arrived


@pytest.mark.parametrize(
    ("options", "says"),
    [({"status": 302}, "HTTP 302 Found"), ({"content_type": "text/html; charset=utf-8"}, "web page")],
)
def test_a_web_server_is_no_collector(options, says):
    with Server(**options) as server:
        answer = sent(server, "http/protobuf")
        assert not answer.arrived and says in answer.message


@pytest.mark.parametrize(
    ("protocol", "says"), [("http/protobuf", "HTTP 400 Bad Request"), ("grpc", "INVALID_ARGUMENT: no")]
)
def test_a_refusal_says_why(protocol, says, caplog):
    with Server(status=400, code=grpc.StatusCode.INVALID_ARGUMENT) as server:
        assert sent(server, protocol) == sending.Answer(False, message=says)
        assert len(server.bodies) == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    ("protocol", "says"), [("http/protobuf", "HTTP 503"), ("grpc", "RESOURCE_EXHAUSTED: no")]
)
def test_a_collector_with_no_room_now_is_asked_again(protocol, says, environment):
    environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    with Server(status=503, code=grpc.StatusCode.RESOURCE_EXHAUSTED) as server:
        answer = sent(server, protocol)
        assert not answer.arrived and answer.message.startswith(says)
        assert len(server.bodies) > 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nobody_there_is_no_exception(protocol):
    with Server() as server:
        url = server.url(protocol)
    sender = sending.sender_to(url, protocol)
    answer = sender.send(REQUEST)
    assert not answer.arrived
    # Which of the two the system says depends on how the server's socket was closed.
    assert any(reason in answer.message.lower() for reason in ("refused", "reset"))


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://a:4318", "http://a:4318/v1/metrics"),
        ("http://a:4318/", "http://a:4318/v1/metrics"),
        ("https://a/api/v1/otlp", "https://a/api/v1/otlp/v1/metrics"),
        ("http://a/v1/metrics", "http://a/v1/metrics"),
        ("http://a/v1/metrics/", "http://a/v1/metrics"),
    ],
)
def test_an_address_gets_the_path_of_metrics(endpoint, url):
    assert sending.with_metrics_path(endpoint) == url
    assert sending.sender_to(endpoint, "http/protobuf").target == url


@pytest.mark.parametrize(
    ("endpoint", "protocol"), [("a:4317", None), ("ftp://a", None), ("http://a", "http")]
)
def test_what_is_no_address_or_protocol_is_wrong_usage(endpoint, protocol):
    with pytest.raises(UsageError):
        sending.sender_to(endpoint, protocol)


def test_the_protocol_is_what_the_environment_says(environment):
    assert sending.protocol_of_environment() == "http/protobuf"
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    assert sending.protocol_of_environment() == "grpc"
    environment.setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json")
    with pytest.raises(UsageError, match="http/json"):
        sending.protocol_of_environment()


# ---- the private parts


def test_the_http_exporter_has_a_client_that_takes_bytes_and_a_session():
    exporter = OverHttp(endpoint="http://127.0.0.1:1/v1/metrics")
    assert list(inspect.signature(exporter._client.export).parameters) == ["data"], "_client.export(bytes)"
    assert isinstance(exporter._client._transport._session, requests.Session), "_client._transport._session"
    assert exporter._endpoint == "http://127.0.0.1:1/v1/metrics", "_endpoint"
    result = exporter._client.export(REQUEST)
    for name in ("success", "status_code", "reason", "error"):
        assert hasattr(result, name), f"the result's {name}"


def test_the_grpc_exporter_makes_its_stub_and_translates_where_it_can_be_overridden():
    for name in ("_export", "_initialize_channel_and_stub", "_translate_data", "_count_data"):
        assert callable(getattr(OverGrpc, name, None)), name
    exporter = OverGrpc(endpoint="http://127.0.0.1:1")
    for name in ("_channel", "_client", "_endpoint"):
        assert hasattr(exporter, name), name
    assert list(inspect.signature(OverGrpc._export).parameters) == ["self", "data"], "_export(data)"


def test_what_a_session_waits_for_can_be_aborted():
    silent = threading.Event()

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            silent.set()
            threading.Event().wait(5)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    session, failed = requests.Session(), []
    abort = abortable(session)

    def post():
        for _ in range(2):
            try:
                session.post(f"http://127.0.0.1:{server.server_port}", data=b"x", timeout=30)
            except requests.ConnectionError as error:
                failed.append(error)

    thread = threading.Thread(target=post)
    thread.start()
    assert silent.wait(5)
    abort()
    thread.join(3)
    assert not thread.is_alive()
    assert len(failed) == 2
    server.shutdown()
    server.server_close()
