"""The live exporter, on providers of the application's and of its own."""

from __future__ import annotations

import io
import logging
import os
import threading

import numpy as np
import pytest
from made_recordings import Made
from metric_streams import random_recording
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ConsoleMetricExporter,
    InMemoryMetricReader,
)
from opentelemetry.sdk.metrics.view import DropAggregation, ExponentialBucketHistogramAggregation, View

from memexport.errors import UsageError
from memexport.exporters import _otel_provider
from memexport.exporters.otel import OTelExporter
from memexport.model import Device, RecordingEnd, RecordingInfo

CUDA = ("cuda:0",)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No variable of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    return monkeypatch


def provider_of(*views, readers=1, **options):
    """A provider and its readers."""
    made = [InMemoryMetricReader(**options) for _ in range(readers)]
    return MeterProvider(made, views=views, shutdown_on_exit=False), *made


def scopes(reader):
    """What a collection gives: {scope attributes: {metric: {attribute values: value or count}}}."""
    data = reader.get_metrics_data()
    return {
        tuple((scope.scope.attributes or {}).items()): {
            metric.name: {
                tuple(point.attributes.values()): getattr(point, "value", None) or getattr(point, "count", 0)
                for point in metric.data.data_points
            }
            for metric in scope.metrics
        }
        for of_resource in (data.resource_metrics if data else ())
        for scope in of_resource.scope_metrics
    }


def collected(reader):
    """The metrics of the only scope."""
    found = scopes(reader)
    assert len(found) <= 1
    return next(iter(found.values()), {})


def recording(operators=3, **options):
    """A random recording with a few operators at its end."""
    made = random_recording(devices=1, **options)
    level = made.rows[-2]["allocated_bytes"]
    for number in range(operators):
        made.operator("aten.mm", 400_000 + number, 1, device=0, rank=0, allocated_bytes=level)
    return made


def started(exporter, made):
    exporter.begin(made.info, made.tables)
    for batch in made.batches(100):
        exporter.write(batch)
    return exporter


def test_an_applications_provider_gets_everything():
    provider, reader = provider_of()
    exporter = started(OTelExporter(provider), recording())
    found = collected(reader)
    assert found["memexport.operators"] == {CUDA: 3}
    allocated = found["memexport.memory.allocated"][CUDA]
    assert sum(found["memexport.memory.usage"].values()) == allocated
    assert sum(found["memexport.module.memory.usage"].values()) == allocated
    assert found["memexport.step.duration"] == {CUDA: 6}
    assert sum(found["memexport.operator.allocation.size"].values()) > 100
    exporter.end(RecordingEnd())
    assert "memexport.operators" not in collected(reader), "what is over is not observed any more"


def test_an_applications_views_are_kept():
    provider, reader = provider_of(
        View(instrument_name="memexport.module.memory.usage", aggregation=DropAggregation()),
        View(instrument_name="memexport.memory.usage", name="renamed", attribute_keys={"memexport.category"}),
        View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation(max_size=4)),
    )
    started(OTelExporter(provider), recording())
    found = collected(reader)
    assert "memexport.module.memory.usage" not in found
    assert ("parameter",) in found["renamed"]
    assert sum(found["renamed"].values()) == found["memexport.memory.allocated"][CUDA]
    assert found["memexport.step.duration"] == {CUDA: 6}


def test_the_provider_that_the_application_has_set_is_used(environment):
    provider, reader = provider_of()
    environment.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)
    started(OTelExporter(), recording())
    assert collected(reader)["memexport.operators"] == {CUDA: 3}


def test_a_provider_set_before_the_first_operator_is_in_time(environment):
    made = recording()
    exporter = OTelExporter()
    exporter.begin(made.info, made.tables)
    provider, reader = provider_of()
    environment.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)
    for batch in made.batches():
        exporter.write(batch)
    assert collected(reader)["memexport.operators"] == {CUDA: 3}


def test_without_an_application_provider_the_api_has_a_proxy():
    """If this fails, a new version has another way to say that no provider was set."""
    assert type(api.get_meter_provider()).__name__ == "_ProxyMeterProvider"
    assert _otel_provider.application_provider() is None


def test_recordings_one_after_the_other_count_on():
    provider, reader = provider_of()
    exporter = OTelExporter(provider)
    for number in (1, 2, 3):
        started(exporter, recording())
        found = collected(reader)
        assert found["memexport.operators"] == {CUDA: 3 * number}
        assert found["memexport.step.duration"] == {CUDA: 6 * number}
        exporter.end(RecordingEnd())
    assert len(scopes(reader)) <= 1


def test_recordings_at_the_same_time_are_not_added_up():
    provider, reader = provider_of()
    first, second = (
        started(OTelExporter(provider), recording()),
        started(OTelExporter(provider), recording(5)),
    )
    found = scopes(reader)
    assert found[()]["memexport.operators"] == {CUDA: 3}
    assert found[(("memexport.tracker", 2),)]["memexport.operators"] == {CUDA: 5}
    first.end(RecordingEnd())
    second.end(RecordingEnd())
    started(OTelExporter(provider), recording(1))
    assert scopes(reader)[()]["memexport.operators"] == {CUDA: 4}


def test_delta_temporality_counts_what_is_new():
    delta = {Histogram: AggregationTemporality.DELTA, ObservableCounter: AggregationTemporality.DELTA}
    provider, reader = provider_of(preferred_temporality=delta)
    made = recording()
    exporter = started(OTelExporter(provider), made)
    assert collected(reader)["memexport.operators"] == {CUDA: 3}
    exporter.write(made.batches(1)[-1])
    found = collected(reader)
    assert found["memexport.operators"] == {CUDA: 1}
    assert found["memexport.memory.allocated"][CUDA] > 0
    assert "memexport.step.duration" not in found


def test_retries_and_failed_requests_are_exported_once_they_are_known():
    provider, reader = provider_of()
    exporter = started(OTelExporter(provider), recording())
    exporter.watch(lambda: RecordingEnd(alloc_retries=2, ooms=1, dropped_events=9))
    found = collected(reader)
    assert found["memexport.allocation.retries"] == {CUDA: 2}
    assert found["memexport.ooms"] == {CUDA: 1}
    assert found["memexport.events.dropped"] == {(): 9}


def test_the_end_flushes_the_applications_provider_and_leaves_it_open():
    flushed = []

    class Provider(MeterProvider):
        def force_flush(self, timeout_millis=10_000):
            flushed.append(timeout_millis)
            return True

        def shutdown(self, timeout_millis=30_000):
            raise AssertionError("it is the application's")

    exporter = started(OTelExporter(Provider(shutdown_on_exit=False)), recording())
    exporter.end(RecordingEnd())
    assert flushed == [5000.0]


def test_a_flush_that_hangs_is_waited_for_only_so_long(caplog):
    class Provider(MeterProvider):
        def force_flush(self, timeout_millis=10_000):
            return threading.Event().wait(3)

    exporter = started(OTelExporter(Provider(shutdown_on_exit=False), shutdown_timeout=0.1), recording())
    exporter.end(RecordingEnd())
    assert "not exported" in caplog.text


def test_a_provider_that_fails_reaches_nobody(caplog):
    class Provider(MeterProvider):
        def get_meter(self, *_, **__):
            raise RuntimeError("out of meters")

    exporter = started(OTelExporter(Provider(shutdown_on_exit=False)), recording())
    exporter.end(RecordingEnd())
    assert [record.getMessage() for record in caplog.records] == [
        "memexport: no metrics are exported: out of meters"
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier pigeon"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
    ],
)
def test_an_environment_that_makes_no_sense_is_a_warning(environment, caplog, name, value):
    environment.setenv(name, value)
    started(OTelExporter(), recording()).end(RecordingEnd())
    assert "no metrics are exported" in caplog.text
    assert [t.name for t in threading.enumerate() if "Otel" in t.name] == []


def test_the_sdk_disabled_or_no_exporter_wanted_starts_no_thread(environment):
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_METRICS_EXPORTER", "none")):
        with environment.context() as only_this:
            only_this.setenv(name, value)
            threads = threading.active_count()
            exporter = started(OTelExporter(), recording())
            assert threading.active_count() == threads
            exporter.end(RecordingEnd())


def test_the_console_can_be_exported_to(environment):
    shown = io.StringIO()
    environment.setenv("OTEL_METRICS_EXPORTER", "console")
    environment.setattr(_otel_provider, "ConsoleMetricExporter", lambda: ConsoleMetricExporter(shown))
    started(OTelExporter(), recording()).end(RecordingEnd())
    assert "memexport.operators" in shown.getvalue()


def test_trackers_at_the_same_time_share_the_provider_of_the_environment(environment):
    environment.setenv("OTEL_METRICS_EXPORTER", "console")
    first, second = started(OTelExporter(), recording()), started(OTelExporter(), recording())
    readers = [t for t in threading.enumerate() if t.name == "OtelPeriodicExportingMetricReader"]
    assert len(readers) == 1
    first.end(RecordingEnd())
    assert readers[0].is_alive()
    second.end(RecordingEnd())
    assert not readers[0].is_alive()


def test_abort_gives_everything_back(environment):
    environment.setenv("OTEL_METRICS_EXPORTER", "console")
    exporter = OTelExporter()
    exporter.abort()
    started(exporter, recording())
    exporter.abort()
    exporter.abort()
    assert [t.name for t in threading.enumerate() if "Otel" in t.name] == []


def test_the_process_is_described_as_the_environment_and_the_recording_say(environment):
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a,host.name=b")
    own = _otel_provider.OwnProvider({"host.name": "c", "service.name": "memexport", "memexport.rank": 3})
    attributes = own.provider._sdk_config.resource.attributes
    assert (attributes["team"], attributes["host.name"]) == ("a", "b")
    assert (attributes["service.name"], attributes["memexport.rank"]) == ("memexport", 3)
    assert attributes["telemetry.sdk.name"] == "opentelemetry"
    own.close(0.2)


def test_ten_thousand_modules_do_not_overflow():
    made = Made(devices=[Device("cuda", 0)])
    for number in range(10_000):
        made.add(
            2, number, name="aten.mm", module=f"block.{number}.fc", size_bytes=number, address=number + 1,
            category=1 + number % 8, device=0, rank=0, allocated_bytes=(number + 1) * number // 2,
        )  # fmt: skip
    made.operator("aten.mm", 10_000, 1, device=0, rank=0)
    provider, reader = provider_of()
    started(OTelExporter(provider), made)
    found = collected(reader)
    for series in found.values():
        assert len(series) < 1_000
    usage = found["memexport.module.memory.usage"]
    assert sum(usage.values()) == found["memexport.memory.allocated"][CUDA] == 10_000 * 9_999 // 2
    assert (True,) not in usage


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forks_copy_of_an_applications_provider_has_nothing_of_ours():
    provider, reader = provider_of()
    started(OTelExporter(provider), recording())
    assert collected(reader)["memexport.step.duration"] == {CUDA: 6}
    child = os.fork()
    if child == 0:
        os._exit(0 if collected(reader) == {} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert collected(reader)["memexport.step.duration"] == {CUDA: 6}


def test_options_out_of_their_range_are_refused():
    with pytest.raises(UsageError, match="top_modules"):
        OTelExporter(top_modules=1_000)
    with pytest.raises(UsageError, match="module_depth"):
        OTelExporter(module_depth=0)


def test_without_opentelemetry_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError) as error:
        OTelExporter()
    assert "memexport[otlp]" in error.value.hint


def test_an_exporter_that_never_began_can_end():
    exporter = OTelExporter()
    exporter.end(RecordingEnd())
    exporter.watch(RecordingEnd)
    exporter.write(recording().batches()[0])


def test_a_recording_without_operators_is_exported_at_its_end():
    exported = []

    class Provider(MeterProvider):
        def force_flush(self, timeout_millis=10_000):
            exported.append(collected(reader))
            return True

    reader = InMemoryMetricReader()
    exporter = OTelExporter(Provider([reader], shutdown_on_exit=False))
    started(exporter, random_recording(devices=1)).end(RecordingEnd(dropped_events=1))
    assert exported[0]["memexport.events.dropped"] == {(): 1}
    assert exported[0]["memexport.memory.allocated"][CUDA] > 0


def test_logs_of_an_applications_own_exporters_are_left_alone(caplog):
    from memexport.exporters._otel_quiet import LOGGERS, kept_back

    logger = logging.getLogger(LOGGERS[0])
    with kept_back() as messages:
        logger.warning("ours")
        other = threading.Thread(target=logger.warning, args=("theirs",))
        other.start()
        other.join()
    logger.warning("after")
    assert messages == ["ours"]
    assert [record.getMessage() for record in caplog.records] == ["theirs", "after"]


def test_an_info_without_a_rank_is_fine():
    made = recording()
    made.info = RecordingInfo(devices=made.info.devices)
    provider, reader = provider_of()
    started(OTelExporter(provider), made)
    assert np.sum(list(collected(reader)["memexport.operators"].values())) == 3
