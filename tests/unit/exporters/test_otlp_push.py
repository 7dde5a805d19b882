"""The exporter of a recording's metrics: requests of the right size, a truthful report, and how to go on."""

from __future__ import annotations

import pytest
from made_recordings import START, Made
from metric_streams import random_recording
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from memexport.errors import OutputError, UsageError
from memexport.exporters import _otlp_send as sending
from memexport.exporters import otlp
from memexport.exporters._otlp_send import Answer
from memexport.exporters.destination import FileDestination
from memexport.exporters.otlp import MAX_REQUEST_BYTES, OtlpExporter
from memexport.exporters.remote_destination import RemoteDestination


class Collector:
    """Stands for a sender; answers are given in turn, the last one for ever."""

    target = "http://collector"

    def __init__(self, *answers):
        self.requests, self._answers = [], list(answers) or [Answer(True)]

    def send(self, request):
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer.arrived:
            self.requests.append(request)
        return answer

    def close(self):
        self.closed = True

    def points(self):
        """Every point as (metric, attributes, time)."""
        return [
            (metric.name, str(point.attributes), point.time_unix_nano)
            for request in self.requests
            for of_resource in MetricsData.FromString(request).resource_metrics
            for metric in of_resource.scope_metrics[0].metrics
            for point in getattr(metric, metric.WhichOneof("data")).data_points
        ]


@pytest.fixture
def pushed(monkeypatch):
    """Sends a recording to a collector; the exporter."""

    def push(made, collector, begun=None, **options):
        monkeypatch.setattr(sending, "sender_to", lambda *_: collector)
        exporter = OtlpExporter("http://collector", interval_ns=10_000, **options)
        if begun is not None:
            begun.append(exporter)
        exporter.begin(made.info, made.tables)
        for batch in made.batches():
            exporter.write(batch)
        exporter.end(made.end)
        return exporter

    return push


def test_everything_is_sent_once_and_told(pushed):
    collector = Collector()
    report = pushed(random_recording(), collector).report
    points = collector.points()
    assert len(points) == len(set(points)) == report.sent == report.accepted
    assert (report.rejected, report.requests) == (0, len(collector.requests))
    assert collector.closed


def test_requests_are_less_than_four_mebibytes(pushed, monkeypatch):
    monkeypatch.setattr(otlp, "_WANTED_REQUEST_BYTES", 20 * 2**20)
    monkeypatch.setattr(otlp, "MAX_REQUEST_BYTES", 20_000)
    collector, expected = Collector(), Collector()
    made = random_recording(events=2_000, ranks=(0, 1))
    pushed(made, collector)
    assert max(map(len, collector.requests)) <= 20_000 < MAX_REQUEST_BYTES < 4 * 2**20
    monkeypatch.undo()
    pushed(made, expected)
    assert sorted(collector.points()) == sorted(expected.points())


def test_a_failure_says_what_was_accepted_and_how_to_go_on(pushed, monkeypatch):
    monkeypatch.setattr(otlp, "_WANTED_REQUEST_BYTES", 20_000)
    whole, first, rest, begun = (
        Collector(),
        Collector(*[Answer(True)] * 3, Answer(False, 0, "gone")),
        Collector(),
        [],
    )
    made = random_recording(events=1_000)
    pushed(made, whole)
    with pytest.raises(OutputError) as error:
        pushed(made, first, begun)
    report = begun[0].report
    assert report.accepted == len(first.points()) < report.sent < len(whole.points())
    assert f"after {report.accepted:,} accepted points, up to 20" in str(error.value)
    assert str(error.value).endswith("gone")
    assert f"--from {report.resume_at}" in error.value.hint
    assert error.value.exit_code == 4
    pushed(made, rest, begin=report.resume_at)
    assert first.points() + rest.points() != []
    assert sorted(first.points() + rest.points()) == sorted(whole.points())
    assert not set(first.points()) & set(rest.points())


def test_points_after_a_resumption_have_the_totals_of_the_whole_recording(pushed):
    made, whole, rest = random_recording(events=500), Collector(), Collector()
    pushed(made, whole)
    pushed(made, rest, begin="200us")
    (first,), (second,) = whole.requests, rest.requests
    assert set(rest.points()) == {point for point in whole.points() if point[2] >= START + 200_000}
    metrics = [
        MetricsData.FromString(r).resource_metrics[0].scope_metrics[0].metrics for r in (first, second)
    ]
    ends = [{m.name: getattr(m, m.WhichOneof("data")).data_points[-1] for m in found} for found in metrics]
    assert ends[0] == ends[1]


def test_nothing_accepted_has_nothing_to_resume(pushed):
    with pytest.raises(OutputError, match="no points were accepted: down") as error:
        pushed(random_recording(), Collector(Answer(False, 0, "down")))
    assert "--from" not in error.value.hint


def test_what_was_rejected_is_counted_and_fails_only_when_all_is_sent(pushed, monkeypatch):
    monkeypatch.setattr(otlp, "_WANTED_REQUEST_BYTES", 20_000)
    collector, begun = Collector(Answer(True, 5, "too old"), Answer(True)), []
    with pytest.raises(OutputError, match=r"rejected 5 of [\d,]+ points: too old"):
        pushed(random_recording(events=1_000), collector, begun)
    report = begun[0].report
    assert report.rejected == 5
    assert report.accepted + 5 == report.sent == len(collector.points())


def test_a_collector_may_have_something_to_say(pushed):
    report = pushed(random_recording(), Collector(Answer(True, 0, "use gRPC"))).report
    assert (report.rejected, report.message) == (0, "use gRPC")


def test_an_empty_recording_sends_nothing(pushed):
    collector = Collector()
    assert pushed(Made(), collector).report.sent == 0
    assert collector.requests == []


def test_a_recording_without_a_clock_is_refused(pushed):
    with pytest.raises(UsageError, match="no clock"):
        pushed(Made(clock="index"), Collector())


def test_an_event_is_no_time():
    with pytest.raises(UsageError, match="times"):
        OtlpExporter("http://a", begin="#100")


def test_the_destination_is_an_address(tmp_path):
    assert OtlpExporter(RemoteDestination("http://a:4318")).target == "http://a:4318"
    with pytest.raises(UsageError, match="collector"):
        OtlpExporter(FileDestination(tmp_path / "x"))


def test_abort_is_allowed_at_any_time(pushed):
    OtlpExporter("http://a").abort()
    exporter = pushed(random_recording(), Collector())
    exporter.abort()
    exporter.abort()


def test_the_environment_has_the_last_word_on_the_resource(pushed, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a,host.name=b")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    collector = Collector()
    pushed(random_recording(host="node-a"), collector)
    resource = MetricsData.FromString(collector.requests[0]).resource_metrics[0].resource
    facts = {pair.key: pair.value.string_value for pair in resource.attributes}
    assert (facts["team"], facts["host.name"], facts["service.name"]) == ("a", "b", "training")
