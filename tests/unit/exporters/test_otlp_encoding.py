"""The bytes of a request, and the lines of a file: what OTLP's own definitions read from them."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from made_recordings import START, two_steps
from metric_streams import random_recording
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from memexport.exporters import _otel_metrics as metrics
from memexport.exporters._otel_fold import FoldOptions
from memexport.exporters._otel_metrics import Instrument
from memexport.exporters._otlp_frames import Frames
from memexport.exporters._otlp_json import LineEncoder
from memexport.exporters._otlp_protobuf import RequestEncoder
from memexport.exporters._otlp_resource import recorded_facts
from memexport.exporters.otlp_file import OtlpFileExporter

STRANGE = 'a "quoted" % name\\ \x1b[2J \u202e ü 100%s %d'


def strange_recording():
    """A recording with names that no format likes."""
    made = random_recording(ranks=(0, 2), host="node-a", pid=7, rank=0, world_size=4)
    made.operator("aten.mm", 301_000, 5, device=1, rank=2, module=STRANGE, allocated_bytes=2**53)
    made.add(2, 302_000, name="aten.mm", module=STRANGE, size_bytes=2**40, device=1, rank=2, address=1)
    return made


def moments(made, interval_ns=20_000):
    frames = Frames(made.info, made.tables, FoldOptions(), interval_ns)
    found = [moment for batch in made.batches() for moment in frames.add(batch)]
    return [*found, *frames.end(made.end)]


def protobuf(made):
    return RequestEncoder(START, lambda rank: recorded_facts(made.info, rank))


@pytest.mark.parametrize("made", [strange_recording(), two_steps()], ids=["strange", "two steps"])
def test_each_line_is_the_same_message_as_the_bytes(made):
    lines, requests = LineEncoder(made.info, START), protobuf(made)
    for moment in moments(made):
        line = lines.encode(moment)
        assert line.endswith("}\n") and line.count("\n") == 1
        assert line.isascii()
        parsed = json_format.Parse(line, MetricsData())
        assert parsed == MetricsData.FromString(requests.encode(moment))


def plain(message):
    """A number point without what it is compared by."""
    return {pair.key: pair.value.string_value for pair in message.attributes}, message.as_int


def test_the_bytes_hold_every_number_of_every_frame():
    made = strange_recording()
    encoder = protobuf(made)
    for moment in moments(made):
        for frame in moment:
            request = MetricsData.FromString(encoder.encode([frame]))
            (of_resource,) = request.resource_metrics
            (scope,) = of_resource.scope_metrics
            found = {metric.name: metric for metric in scope.metrics}
            for numbers in frame.numbers:
                metric = found[numbers.metric.name]
                data = getattr(metric, metric.WhichOneof("data"))
                expected = zip(numbers.attributes, numbers.values.tolist(), strict=True)
                assert [plain(p) for p in data.data_points] == [(dict(a), value) for a, value in expected]
                assert {point.time_unix_nano for point in data.data_points} == {frame.time_unix_ns}


def test_many_frames_in_one_request_keep_their_order_and_new_series():
    made = strange_recording()
    all_moments = moments(made, 3_000)
    together = MetricsData.FromString(protobuf(made).encode(f for moment in all_moments for f in moment))
    alone = protobuf(made)
    for of_resource in together.resource_metrics:
        resource = {p.key: p.value.int_value for p in of_resource.resource.attributes}
        rank = resource.get("memexport.rank", -1)
        one_by_one = {}
        for frame in (f for moment in all_moments for f in moment if f.rank == rank):
            request = MetricsData.FromString(alone.encode([frame]))
            for metric in request.resource_metrics[0].scope_metrics[0].metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                one_by_one.setdefault(metric.name, []).extend(data.data_points)
        for metric in of_resource.scope_metrics[0].metrics:
            data = getattr(metric, metric.WhichOneof("data"))
            assert list(data.data_points) == one_by_one.pop(metric.name)
        assert one_by_one == {}


def test_types_units_and_temporality_are_those_of_the_table():
    table = {metric.name: metric for metric in metrics.METRICS}
    made = two_steps()
    request = MetricsData.FromString(protobuf(made).encode(moments(made)[-1]))
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        expected = table[metric.name]
        assert (metric.unit, metric.description) == (expected.unit, expected.description)
        match expected.instrument:
            case Instrument.GAUGE:
                assert metric.WhichOneof("data") == "gauge"
                assert all(point.start_time_unix_nano == 0 for point in metric.gauge.data_points)
                continue
            case Instrument.HISTOGRAM:
                data = metric.exponential_histogram
            case _:
                data = metric.sum
                assert data.is_monotonic == (expected.instrument is Instrument.COUNTER)
        assert data.aggregation_temporality == 2
        assert all(point.start_time_unix_nano == START for point in data.data_points)


def test_the_resource_says_where_the_recording_comes_from():
    made = random_recording(host="node-a", pid=7, rank=0, local_rank=0, world_size=4)
    facts = recorded_facts(made.info, 0)
    assert facts["service.name"] == "memexport"
    assert (facts["host.name"], facts["process.pid"]) == ("node-a", 7)
    assert [facts[f"memexport.{name}"] for name in ("rank", "local_rank", "world_size")] == [0, 0, 4]
    assert facts == recorded_facts(made.info, 0)
    other = recorded_facts(made.info, 3)
    assert other["memexport.rank"] == 3
    assert not {"host.name", "memexport.local_rank"} & other.keys()
    assert other["service.instance.id"] != facts["service.instance.id"]


def test_a_file_has_a_line_for_each_interval(tmp_path):
    made = random_recording()
    path = made.write(lambda to: OtlpFileExporter(to, interval_ns=20_000), tmp_path / "x.otlp.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == len(moments(made))
    point = lines[0]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["sum"]["dataPoints"][0]
    assert point["timeUnixNano"] == str(START + 20_000)
    assert point["asInt"].isdigit()
