"""What OpenTelemetry metrics cost: live, and from recordings.

    python tools/bench/otlp.py [--rounds 15] [--steps 60] [--operators 300000] [--live | --backfill]

Live: one process, one thread of torch, the demo's transformer, a collector (in another process) that takes
everything. Each round takes the processor time of some training steps, of all threads, under the tracker
alone and with an `OTelExporter` that is collected every second, and at the default interval of 60 seconds.

Backfill: a made-up recording is folded into frames, a frame every 5 ms of it, and these are encoded, by
memexport and, as the same data points, by OpenTelemetry's own encoder. Then recordings of different lengths
are sent to a collector that takes everything, each in a process of its own, for the memory.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from synthetic import synthetic_batches

from memexport.exporters._otel_fold import FoldOptions
from memexport.exporters._otel_metrics import Instrument, Metric
from memexport.exporters._otlp_frames import Frame, Frames
from memexport.exporters._otlp_protobuf import RequestEncoder
from memexport.exporters._otlp_resource import recorded_facts
from memexport.exporters.otlp import OtlpExporter
from memexport.model import RecordingEnd

FRAMES_A_REQUEST = 60
INTERVAL_NS = 5_000_000
DEPTH = 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="training steps per measurement")
    parser.add_argument("--operators", type=int, default=300_000, help="in the recording that is sent")
    parser.add_argument("--live", action="store_true", help="only this")
    parser.add_argument("--backfill", action="store_true", help="only this")
    parser.add_argument("--send", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        _send(options.send, options.operators)
        return
    if not options.backfill:
        _live(options.rounds, options.steps)
    if not options.live:
        _encoding(options.operators)
        _memory(options.operators)


# ---- live


def _live(rounds: int, steps: int) -> None:
    import torch

    import memexport
    from memexport.demo import SmallTransformer, training_step

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallTransformer()
    optimizer = torch.optim.AdamW(model.parameters())

    def measured(exporters: list[Any]) -> float:
        """Processor microseconds per operator."""
        with memexport.Tracker(model, optimizer=optimizer, exporters=exporters) as tracker:
            for _ in range(5):
                training_step(model, optimizer)
            before = tracker.summary().operators
            time.sleep(0.3)  # whatever had to be imported in the background is there
            began = time.process_time()
            for _ in range(steps):
                training_step(model, optimizer)
                tracker.step()
            operators = tracker.summary().operators - before
            time.sleep(0.1)  # for the export thread to come to an end
            return (time.process_time() - began) / operators * 1e6

    with _collector() as url:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
        tools: dict[str, Callable[[], list[Any]]] = {
            "tracker alone": list,
            "collected every 60 s": lambda: [_with_interval(60_000)],
            "collected every second": lambda: [_with_interval(1_000)],
            "tracker alone again": list,
        }
        for make in tools.values():
            measured(make())
        times: dict[str, list[float]] = {name: [] for name in tools}
        for number in range(rounds):
            # Whatever the machine does besides meets all of them alike.
            for name in list(tools) if number % 2 else list(tools)[::-1]:
                times[name].append(measured(tools[name]()))
    alone = times["tracker alone"]
    print(f"{'live':28}{'µs/operator':>12}{'adds':>9}{'target':>9}")
    for name, values in times.items():
        added = statistics.median(v / base - 1 for v, base in zip(values, alone, strict=True))
        target = "≤ 3 %" if name.startswith("collected") else ""
        print(f"{name:28}{statistics.median(values):12.2f}{added:9.1%}{target:>9}")


def _with_interval(milliseconds: int) -> Any:
    import memexport

    os.environ["OTEL_METRIC_EXPORT_INTERVAL"] = str(milliseconds)
    return memexport.OTelExporter()


# ---- backfill


def _encoding(operators: int) -> None:
    info, tables, batches = synthetic_batches(operators)
    source, began = list(batches), time.process_time()
    frames = Frames(info, tables, FoldOptions(module_depth=DEPTH), INTERVAL_NS)
    moments = [moment for batch in source for moment in frames.add(batch)]
    moments += frames.end(RecordingEnd())
    folding = time.process_time() - began
    found = [frame for moment in moments for frame in moment]
    points = sum(frame.points for frame in found)
    groups = [found[i : i + FRAMES_A_REQUEST] for i in range(0, len(found), FRAMES_A_REQUEST)]
    theirs_in = [_metrics_data(group, frames.begin_ns) for group in groups]
    encoder = RequestEncoder(frames.begin_ns, lambda rank: recorded_facts(info, rank))
    ours = _best(lambda: [encoder.encode(group) for group in groups])
    theirs = _best(lambda: [encode_metrics(data).SerializeToString() for data in theirs_in])
    print(f"\n{points:,} points of {points // len(found)} series, from {sum(map(len, source)):,} events")
    print(f"{'backfill':28}{'points/s':>12}{'× SDK':>9}{'target':>26}")
    print(f"{'encoded by memexport':28}{points / ours:12,.0f}{theirs / ours:9.1f}{'≥ 200,000 and ≥ 1':>26}")
    print(f"{'encoded by the SDK':28}{points / theirs:12,.0f}{1:9.1f}")
    print(f"{'folded and encoded':28}{points / (ours + folding):12,.0f}")


def _best(action: Callable[[], object], repeat: int = 3) -> float:
    times = []
    for _ in range(repeat):
        began = time.process_time()
        action()
        times.append(time.process_time() - began)
    return min(times)


def _metrics_data(frames: Sequence[Frame], begin_ns: int) -> sdk.MetricsData:
    """The same points as the SDK's objects."""
    points: dict[Metric, list[Any]] = {}
    for frame in frames:
        for numbers in frame.numbers:
            points.setdefault(numbers.metric, []).extend(
                sdk.NumberDataPoint(dict(attributes), begin_ns, frame.time_unix_ns, value)
                for attributes, value in zip(numbers.attributes, numbers.values.tolist(), strict=True)
            )
        for histogram in frame.histograms:
            points.setdefault(histogram.metric, []).extend(
                sdk.ExponentialHistogramDataPoint(
                    dict(attributes), begin_ns, frame.time_unix_ns, b.count, b.sum, b.scale, b.zeros,
                    sdk.Buckets(b.offset, b.counts), sdk.Buckets(0, ()), 0, b.min, b.max,
                )
                for attributes, b in zip(histogram.attributes, histogram.buckets, strict=True)
            )  # fmt: skip
    metrics = [sdk.Metric(m.name, m.description, m.unit, _data(m, of)) for m, of in points.items()]
    scope = sdk.ScopeMetrics(InstrumentationScope("memexport"), metrics, "")
    return sdk.MetricsData([sdk.ResourceMetrics(Resource({"service.name": "memexport"}), [scope], "")])


def _data(metric: Metric, points: list[Any]) -> Any:
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    match metric.instrument:
        case Instrument.GAUGE:
            return sdk.Gauge(points)
        case Instrument.HISTOGRAM:
            return sdk.ExponentialHistogram(points, cumulative)
        case _:
            return sdk.Sum(points, cumulative, metric.instrument is Instrument.COUNTER)


def _memory(operators: int) -> None:
    with _collector() as url:
        print(f"\n{'sent to a collector':28}{'points':>12}{'points/s':>12}{'peak MiB':>10}{'target':>8}")
        for count, target in ((operators, ""), (4 * operators, "flat")):
            command = [sys.executable, __file__, "--send", url, "--operators", str(count)]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            points, rate, peak = told["points"], told["points"] / told["seconds"], told["peak_mib"]
            print(f"{count:>9,} operators{'':9}{points:12,}{rate:12,.0f}{peak:10.0f}{target:>8}")


def _send(url: str, operators: int) -> None:
    """Send a recording; prints the figures as JSON."""
    info, tables, batches = synthetic_batches(operators)
    exporter = OtlpExporter(url, protocol="http/protobuf", interval_ns=INTERVAL_NS, module_depth=DEPTH)
    seconds = 0.0
    exporter.begin(info, tables)
    for batch in batches:
        began = time.perf_counter()
        exporter.write(batch)
        seconds += time.perf_counter() - began
    exporter.end(RecordingEnd())
    # Not ru_maxrss: that is also what the process was before it became this one.
    status = Path("/proc/self/status").read_text()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"points": exporter.report.accepted, "seconds": seconds, "peak_mib": peak_kib / 1024}))


# ---- the collector


class _TakesEverything(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Throw it away."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def _collector() -> Iterator[str]:
    """Something that takes every request, in a process of its own; its address."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _TakesEverything)
        os.write(writing, str(server.server_port).encode())
        os.close(writing)
        server.serve_forever()
    os.close(writing)
    with os.fdopen(reading) as port:
        url = f"http://127.0.0.1:{port.read()}"
    try:
        yield url
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
