"""Metrics through a real collector: what it received is what the tracker and the recording say."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent import futures

import grpc
import pytest
import torch
from click.testing import CliRunner
from rotel_collector import (
    Rotel,
    Sink,
    attributes_of,
    free_port,
    metrics_in,
    points_of,
    requests_in_file,
    series_in,
    wait_until,
)

import memexport
from memexport.cli import main
from memexport.exporters import otlp
from memexport.exporters._otel_metrics import METRICS, Instrument

PROTOCOLS = ["grpc", "http/protobuf"]
LIVE_ON_A_CPU = {
    "memexport.memory.allocated",
    "memexport.memory.active",
    "memexport.memory.allocated.peak",
    "memexport.memory.active.peak",
    "memexport.memory.usage",
    "memexport.module.memory.usage",
    "memexport.operator.allocation.size",
    "memexport.step.duration",
    "memexport.step.memory.peak",
    "memexport.operators",
    "memexport.events.dropped",
    "process.memory.usage",
}
KIND = {
    Instrument.UP_DOWN_COUNTER: ("sum", False),
    Instrument.COUNTER: ("sum", True),
    Instrument.GAUGE: ("gauge", None),
    Instrument.HISTOGRAM: ("exponential_histogram", None),
}


def training(steps=6, pause=0.0):
    """Train a small model; a generator of losses, the same ones every time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())
        time.sleep(pause)


def tracked_training(exporter, **options):
    """The same under a tracker with this exporter; the tracker and the losses."""
    losses = []
    with memexport.Tracker(exporters=[exporter], flush_interval=0.05) as tracker:
        for loss in training(**options):
            losses.append(loss)
            tracker.step()
    return tracker, losses


@pytest.fixture
def sink():
    """A server that keeps what it is sent."""
    started = Sink()
    yield started
    started.close()


@pytest.fixture
def collector(sink, tmp_path):
    """A running collector in front of the sink."""
    folder = tmp_path / "rotel"
    folder.mkdir()
    started = Rotel(sink, folder)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def environment(monkeypatch):
    """Sets OTEL_* variables; those of whoever runs the tests are gone."""
    for name in list(os.environ):
        # requests prefers a bundle in the environment to the certificate that it is given.
        if name.startswith("OTEL_") or name.endswith("CA_BUNDLE"):
            monkeypatch.delenv(name)

    def set_variables(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(f"OTEL_{name}", value)

    return set_variables


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_the_tracker_says_at_the_end_arrives_with_units_types_and_attributes(
    collector, sink, environment, protocol
):
    environment(
        EXPORTER_OTLP_PROTOCOL=protocol,
        EXPORTER_OTLP_ENDPOINT=collector.url(protocol),
        EXPORTER_OTLP_COMPRESSION="gzip",
        METRIC_EXPORT_INTERVAL="100",
        SERVICE_NAME="training",
    )
    tracker, _ = tracked_training(memexport.OTelExporter(), pause=0.05)
    collector.stop()
    described = {metric.name: metric for metric in METRICS}
    found = list(metrics_in(sink.requests))
    assert {metric.name for _, _, metric in found} == LIVE_ON_A_CPU
    for resource, scope, metric in found:
        assert resource["service.name"] == "training"
        assert resource["process.pid"] == os.getpid()
        assert resource["telemetry.sdk.name"] == "opentelemetry"
        assert resource["service.instance.id"] and resource["host.name"]
        assert scope.name == "memexport"
        expected = described[metric.name]
        kind, monotonic = KIND[expected.instrument]
        assert (metric.unit, metric.description, metric.WhichOneof("data")) == (
            expected.unit,
            expected.description,
            kind,
        )
        assert monotonic is None or metric.sum.is_monotonic == monotonic
        for point in points_of(metric):
            assert tuple(attributes_of(point)) == expected.attributes
    last = {key: points[max(points)] for key, points in series_in(sink.requests).items()}
    usage, summary = tracker.usage()["cpu"], tracker.summary().to_dict()
    assert last["memexport.memory.allocated", (("memexport.device", "cpu"),)] == usage["total"]
    by_category = {
        dict(attributes)["memexport.category"]: value
        for (name, attributes), value in last.items()
        if name == "memexport.memory.usage"
    }
    assert {name: size for name, size in by_category.items() if size} == {
        name: size for name, size in usage.items() if name != "total"
    }
    assert last["memexport.operators", (("memexport.device", "cpu"),)] == summary["operators"]
    steps, _ = last["memexport.step.duration", (("memexport.device", "cpu"),)]
    assert steps == 6


def test_categories_and_modules_add_up_to_allocated_at_every_collection(collector, sink, environment):
    environment(EXPORTER_OTLP_ENDPOINT=collector.http_url, METRIC_EXPORT_INTERVAL="20")
    tracked_training(memexport.OTelExporter(), steps=40, pause=0.01)
    collector.stop()
    series = series_in(sink.requests)
    allocated = series["memexport.memory.allocated", (("memexport.device", "cpu"),)]
    assert len(allocated) > 5
    for name in ("memexport.memory.usage", "memexport.module.memory.usage"):
        totals = dict.fromkeys(allocated, 0)
        for (metric, _), points in series.items():
            for moment, value in points.items() if metric == name else ():
                totals[moment] += value
        assert totals == allocated
    peaks = series["memexport.memory.allocated.peak", (("memexport.device", "cpu"),)]
    assert all(peaks[moment] >= value for moment, value in allocated.items())
    assert max(peaks.values()) > max(allocated.values())


def test_the_highest_peak_of_the_run_is_exported(collector, sink, environment):
    environment(EXPORTER_OTLP_ENDPOINT=collector.http_url, METRIC_EXPORT_INTERVAL="30")
    tracker, _ = tracked_training(memexport.OTelExporter(), steps=30, pause=0.01)
    collector.stop()
    peaks = series_in(sink.requests)["memexport.memory.allocated.peak", (("memexport.device", "cpu"),)]
    assert max(peaks.values()) == tracker.usage("peak")["cpu"]["total"]


def test_temporality_and_buckets_are_what_the_environment_prefers(collector, sink, environment):
    environment(
        EXPORTER_OTLP_ENDPOINT=collector.http_url,
        EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE="delta",
        EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION="explicit_bucket_histogram",
        METRIC_EXPORT_INTERVAL="50",
    )
    tracker, _ = tracked_training(memexport.OTelExporter(), pause=0.05)
    collector.stop()
    found = [metric for _, _, metric in metrics_in(sink.requests)]
    deltas = [m for m in found if m.name == "memexport.operators"]
    assert {m.sum.aggregation_temporality for m in deltas} == {1}
    assert sum(p.as_int for m in deltas for p in points_of(m)) == tracker.summary().operators
    totals = [m for m in found if m.name == "memexport.memory.allocated"]
    assert {m.sum.aggregation_temporality for m in totals} == {2}
    sizes = [m for m in found if m.name == "memexport.operator.allocation.size"]
    assert {m.WhichOneof("data") for m in sizes} == {"histogram"}
    counted = sum(point.count for metric in sizes for point in points_of(metric))
    assert 100 < counted <= tracker.summary().allocations


def test_memexport_run_exports_what_the_script_does(collector, sink, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    command = [sys.executable, "-m", "memexport", "run", "--otlp", "train.py"]
    variables = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.http_url,
        "RANK": "3",
        "WORLD_SIZE": "8",
    }
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".memx"] == []
    collector.stop()
    resources = [resource for resource, _, _ in metrics_in(sink.requests)]
    assert {(resource["memexport.rank"], resource["memexport.world_size"]) for resource in resources} == {
        (3, 8)
    }
    steps = [
        p
        for _, _, m in metrics_in(sink.requests)
        if m.name == "memexport.step.duration"
        for p in points_of(m)
    ]
    assert max(point.count for point in steps) == 3


# ---- a recording, sent afterwards


@pytest.fixture
def recording(tmp_path):
    """An archive of some seconds of training."""
    path = tmp_path / "run.memx"
    tracked_training(path, steps=60, pause=0.01)
    return path


@pytest.fixture
def expected(recording, tmp_path):
    """Every point of the recording, by way of a file."""
    path = tmp_path / "run.otlp.jsonl"
    memexport.convert(recording, path, options={"interval_ns": 10_000_000})
    return series_in(requests_in_file(path))


def test_convert_pushes_the_same_points(recording, expected, collector, sink, environment):
    """`convert --to otlp` is `push`; of what chooses a part of a recording it takes what resumes."""
    done = CliRunner().invoke(
        main,
        [
            *("convert", str(recording), "--to", "otlp", "--interval", "10ms"),
            *("--endpoint", collector.url("http/protobuf")),
        ],
    )
    assert done.exit_code == 0, done.output
    collector.stop()
    assert series_in(sink.requests) == expected
    for part in (("--until", "5ms"), ("--device", "cpu"), ("--min-bytes", "1KiB")):
        refused = CliRunner().invoke(main, ["convert", str(recording), "--to", "otlp", *part])
        assert refused.exit_code == 2
        assert "takes no part of a recording" in refused.output


def push(recording, *options):
    """`memexport push`."""
    return CliRunner().invoke(main, ["push", str(recording), "--interval", "10ms", *options])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_recording_keeps_every_point_with_its_value_and_time(
    recording, expected, collector, sink, environment, protocol
):
    environment(EXPORTER_OTLP_COMPRESSION="gzip")
    done = push(recording, "--endpoint", collector.url(protocol), "--protocol", protocol)
    assert done.exit_code == 0, done.output
    collector.stop()
    assert series_in(sink.requests) == expected
    points = sum(len(series) for series in expected.values())
    assert f"{points:,} points sent" in done.output
    assert f"{points:,} accepted, 0 rejected" in done.output
    with memexport.open(recording) as opened:
        begin = opened.info.start_time_unix_ns
        ends = [batch.time_unix_ns + batch.duration_ns.clip(0) for batch in opened.batches()]
    times = {moment for series in expected.values() for moment in series}
    assert begin < min(times)
    assert max(times) == max(int(of_batch.max()) for of_batch in ends)
    for _, _, metric in metrics_in(sink.requests):
        if metric.WhichOneof("data") != "gauge":
            assert {point.start_time_unix_nano for point in points_of(metric)} == {begin}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_collector_that_dies_half_way_costs_nothing_that_was_accepted(
    recording, expected, collector, sink, environment, monkeypatch, protocol
):
    environment(EXPORTER_OTLP_TIMEOUT="1")
    monkeypatch.setattr(otlp, "_WANTED_REQUEST_BYTES", 20_000)
    send, sent = otlp.OtlpExporter._send, []

    def send_and_stop(self, request, points):
        if len(sent) == 4:
            collector.stop()
        send(self, request, points)
        sent.append(points)

    monkeypatch.setattr(otlp.OtlpExporter, "_send", send_and_stop)
    address = ("--endpoint", collector.url(protocol), "--protocol", protocol)
    done = push(recording, *address)
    assert done.exit_code == 4
    assert f"after {sum(sent):,} accepted points" in done.output
    before = series_in(sink.requests)
    assert sum(len(series) for series in before.values()) == sum(sent)
    sent[:] = range(10)
    collector.start()
    resume = re.search(r"--from (@\S+)", done.output).group(1)
    again = push(recording, *address, "--from", resume)
    assert again.exit_code == 0, again.output
    collector.stop()
    assert series_in(sink.requests) == expected


def test_points_that_the_collector_rejects_are_told_and_fail_the_push(recording, sink, environment):
    environment()
    sink.rejected = 7
    done = push(recording, "--endpoint", sink.url)
    assert done.exit_code == 4
    rejected = 7 * len(sink.requests)
    assert re.search(rf"rejected {rejected} of [\d,]+ points: too old", done.output)


def test_nobody_listening_is_an_output_error(recording, environment):
    environment(EXPORTER_OTLP_TIMEOUT="0.5")
    done = push(recording, "--endpoint", f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 4
    assert "no points were accepted: Connection refused" in done.output


def test_headers_of_the_environment_are_sent(recording, sink, environment):
    environment(EXPORTER_OTLP_HEADERS="x-key=secret", EXPORTER_OTLP_COMPRESSION="gzip")
    assert push(recording, "--endpoint", sink.url).exit_code == 0
    assert {(h["x-key"], h["content-encoding"]) for h in sink.headers} == {("secret", "gzip")}
    sink.headers.clear()
    environment(EXPORTER_OTLP_ENDPOINT=sink.url)
    tracked_training(memexport.OTelExporter())
    assert {(h["x-key"], h["content-encoding"]) for h in sink.headers} == {("secret", "gzip")}


# ---- TLS


@pytest.fixture
def certificate(tmp_path):
    """A certificate for this machine, and its key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -keyout {key} -out {certificate}"
        " -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs openssl")
    return certificate, key


@pytest.fixture
def secured(certificate):
    """Makes a port that speaks TLS and passes on to another that does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    listeners = []

    def in_front_of(port):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=_pass_on, args=(listener, context, port), daemon=True).start()
        return listener.getsockname()[1]

    yield in_front_of
    for listener in listeners:
        listener.close()


def _pass_on(listener, context, port):
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        with contextlib.suppress(OSError):
            encrypted = context.wrap_socket(plain, server_side=True)
            behind = socket.create_connection(("127.0.0.1", port))
            for one, other in ((encrypted, behind), (behind, encrypted)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(one, other):
    with contextlib.suppress(OSError):
        while content := one.recv(65536):
            other.sendall(content)
        other.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tls_with_a_certificate_of_ones_own(
    recording, expected, collector, sink, environment, certificate, secured, protocol
):
    port = secured(collector.grpc_port if protocol == "grpc" else collector.http_port)
    address = ("--endpoint", f"https://localhost:{port}", "--protocol", protocol)
    environment(EXPORTER_OTLP_TIMEOUT="1")
    assert push(recording, *address).exit_code == 4, "an unknown certificate must not be trusted"
    environment(EXPORTER_OTLP_CERTIFICATE=str(certificate[0]), EXPORTER_OTLP_TIMEOUT="10")
    done = push(recording, *address)
    assert done.exit_code == 0, done.output
    environment(EXPORTER_OTLP_ENDPOINT=f"https://localhost:{port}", EXPORTER_OTLP_PROTOCOL=protocol)
    wait_until(lambda: series_in(list(sink.requests)) == expected)
    pushed = len(sink.requests)
    tracked_training(memexport.OTelExporter())
    collector.stop()
    assert "memexport.operators" in {metric.name for _, _, metric in metrics_in(sink.requests[pushed:])}


# ---- nothing that a collector does reaches the training


def refusing_grpc_server():
    """A gRPC server that has no room for anything; its address and what stops it."""

    class Refusing(grpc.GenericRpcHandler):
        def service(self, _):
            def refuse(_, context):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Refusing()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return f"http://127.0.0.1:{port}", lambda: server.stop(0)


@contextlib.contextmanager
def bad_collector(kind, collector, sink):
    """The variables of a collector that does not do what it should."""
    if kind == "down":
        yield {"EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    elif kind == "stopped in the middle":
        timer = threading.Timer(0.4, collector.stop)
        timer.start()
        yield {"EXPORTER_OTLP_ENDPOINT": collector.http_url}
        timer.join()
    elif kind == "503":
        sink.status = 503
        yield {"EXPORTER_OTLP_ENDPOINT": sink.url}
    elif kind == "RESOURCE_EXHAUSTED":
        url, stop = refusing_grpc_server()
        yield {"EXPORTER_OTLP_ENDPOINT": url, "EXPORTER_OTLP_PROTOCOL": "grpc"}
        stop()
    else:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            yield {"EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "EXPORTER_OTLP_PROTOCOL": kind}


@pytest.mark.parametrize(
    "kind", ["down", "stopped in the middle", "503", "RESOURCE_EXHAUSTED", "grpc", "http/protobuf"]
)
def test_a_bad_collector_costs_the_training_nothing_but_a_warning(collector, sink, environment, caplog, kind):
    threads = threading.active_count()
    with bad_collector(kind, collector, sink) as variables:
        environment(METRIC_EXPORT_INTERVAL="50", EXPORTER_OTLP_TIMEOUT="2", **variables)
        losses = []
        tracker = memexport.Tracker(
            exporters=[memexport.OTelExporter(shutdown_timeout=1.0)], flush_interval=0.05
        )
        tracker.start()
        for loss in training(steps=12, pause=0.1):
            losses.append(loss)
            tracker.step()
        began = time.monotonic()
        tracker.stop()
        assert time.monotonic() - began < 2.5
        wait_until(lambda: not [t for t in threading.enumerate() if "OtelPeriodic" in t.name], 3)
    assert losses == list(training(steps=12))
    assert tracker.summary().warnings == ()
    warnings = [record for record in caplog.records if record.name == "memexport"]
    assert [w.levelname for w in warnings] == ["WARNING", "WARNING"]
    assert "the program goes on" in warnings[0].getMessage()
    assert "failed in all" in warnings[1].getMessage()
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    if kind != "RESOURCE_EXHAUSTED":  # its server has threads of its own
        wait_until(lambda: threading.active_count() <= threads + 2, 3)


def test_a_forked_child_exports_nothing(sink, environment):
    environment(EXPORTER_OTLP_ENDPOINT=sink.url, METRIC_EXPORT_INTERVAL="50")
    tracker = memexport.Tracker(exporters=[memexport.OTelExporter()], flush_interval=0.05).start()
    for _ in training(steps=4, pause=0.05):
        tracker.step()
    wait_until(lambda: sink.requests)
    child = os.fork()
    if child == 0:  # as a DataLoader's worker: it goes on for a while, and ends as Python does
        time.sleep(1.0)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - pytest's are its parent's
        import atexit

        atexit._run_exitfuncs()
        os._exit(0)
    tracker.stop()
    exported = len(sink.requests)
    assert os.waitpid(child, 0)[1] == 0
    assert len(sink.requests) == exported


def test_the_sdk_can_be_disabled(sink, environment):
    environment(EXPORTER_OTLP_ENDPOINT=sink.url, SDK_DISABLED="true", METRIC_EXPORT_INTERVAL="20")
    _, losses = tracked_training(memexport.OTelExporter(), pause=0.02)
    assert losses == list(training())
    assert sink.headers == []
