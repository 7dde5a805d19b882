"""Training steps as OpenTelemetry spans: theirs and their phases' times, parents and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import memexport
from memexport.exporters import _otel_spans
from memexport.model import EventBatch, EventKind

MIB = 1 << 20


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No variable of whoever runs the tests, and no metrics."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    return monkeypatch


@pytest.fixture
def memory():
    """Keeps spans."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(memory):
    """The application's."""
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(memory))
    return made


class Kept:
    """Keeps every batch."""

    def begin(self, info, tables):
        self.tables, self.batches = tables, []

    def write(self, batch):
        self.batches.append(batch)

    def end(self, end):
        pass

    def abort(self):
        pass


def train(exporter, steps=3, tracer=None, last=lambda: None):
    """Some steps, each in a span of the application's if there is a tracer; the events."""
    kept = Kept()
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = tracer or api.NoOpTracer()
    with memexport.Tracker(model, exporters=[exporter, kept], flush_interval=0.05) as tracker:
        for number in range(steps):
            with tracer.start_as_current_span(f"step {number}"):
                model(torch.ones(1024 * (number + 1), 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if number == steps - 1:
                    last()
                tracker.step()
    return EventBatch.concat(kept.batches), kept.tables.strings


def named(memory, name):
    """The spans of this name, in the order of their begin."""
    return sorted((s for s in memory.get_finished_spans() if s.name == name), key=lambda s: s.start_time)


def test_each_step_is_a_span_with_its_own_times_and_memory(provider, memory):
    events, strings = train(memexport.OTelExporter(traces=True, tracer_provider=provider))
    steps = events.select((events.kind == EventKind.SPAN) & (events.name == strings.find("step")))
    found = named(memory, "training step")
    assert [(s.start_time, s.end_time - s.start_time) for s in found] == list(
        zip(steps.time_unix_ns.tolist(), steps.duration_ns.tolist(), strict=True)
    )
    for number, span in enumerate(found):
        key = "memexport.memory.allocated"
        uses = {moment: span.attributes[f"{key}.{moment}.cpu"] for moment in ("start", "peak", "end")}
        worked = (events.step == number) & (events.kind <= EventKind.SAMPLE) & (events.device == 0)
        assert span.attributes["memexport.step"] == number
        assert uses["peak"] == max(uses["start"], events.allocated_bytes[worked].max())
        assert uses["end"] == events.allocated_bytes[worked][-1]
        assert uses["peak"] - uses["end"] > (number + 1) * MIB // 4
    assert len({span.context.trace_id for span in found}) == 3


def test_phases_are_spans_inside_their_step(provider, memory):
    train(memexport.OTelExporter(tracer_provider=provider))
    steps = named(memory, "training step")
    for name in ("forward", "backward", "optimizer"):
        phases = named(memory, name)
        assert [phase.parent.span_id for phase in phases] == [step.context.span_id for step in steps]
        for phase, step in zip(phases, steps, strict=True):
            assert step.start_time <= phase.start_time <= phase.end_time <= step.end_time


def test_a_step_is_a_child_of_the_span_that_it_ran_in(provider, memory):
    train(memexport.OTelExporter(tracer_provider=provider), tracer=provider.get_tracer("application"))
    for number, step in enumerate(named(memory, "training step")):
        (parent,) = named(memory, f"step {number}")
        assert step.parent.span_id == parent.context.span_id
        assert step.context.trace_id == parent.context.trace_id


def test_a_step_that_an_error_ends_is_a_child_of_the_span_that_it_ran_in(provider, memory):
    def fail():
        raise torch.OutOfMemoryError("full")

    exporter = memexport.OTelExporter(tracer_provider=provider)
    with pytest.raises(torch.OutOfMemoryError):
        train(exporter, steps=2, tracer=provider.get_tracer("application"), last=fail)
    first, second = named(memory, "training step")
    assert second.parent.span_id == named(memory, "step 1")[0].context.span_id
    assert first.parent.span_id == named(memory, "step 0")[0].context.span_id


def test_spans_go_to_the_provider_that_the_application_has_set(provider, memory, environment):
    environment.setattr(api, "_TRACER_PROVIDER", provider)
    train(memexport.OTelExporter(traces=True))
    assert len(named(memory, "training step")) == 3


def test_without_traces_there_are_no_spans(provider, memory, environment):
    environment.setattr(api, "_TRACER_PROVIDER", provider)
    train(memexport.OTelExporter())
    assert memory.get_finished_spans() == ()


def test_an_error_in_the_applications_processor_is_told_once_and_training_goes_on(
    provider, environment, caplog
):
    environment.setattr(_otel_spans.StepSpans, "_export", lambda *_: 1 / 0)
    events, _ = train(memexport.OTelExporter(tracer_provider=provider))
    assert events.step.max() == 2
    assert [r.getMessage() for r in caplog.records if "spans" in r.getMessage()] == [
        "memexport: no more spans are exported: division by zero"
    ]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_dead_collector_costs_a_warning_and_a_bounded_end(environment, caplog, protocol):
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    tracker = memexport.Tracker(exporters=[memexport.OTelExporter(traces=True, shutdown_timeout=1.0)]).start()
    for _ in range(100):
        torch.ones(2)
        tracker.step()
    began = time.monotonic()
    tracker.stop()
    assert time.monotonic() - began < 5  # and that on a busy machine
    warnings = [r.getMessage() for r in caplog.records if r.levelname != "INFO"]
    assert len(warnings) == 1
    assert "spans cannot be exported, the program goes on" in warnings[0]
    assert not [r for r in caplog.records if r.name.startswith("opentelemetry")]


def test_the_sdk_can_be_disabled(environment, caplog):
    environment.setenv("OTEL_SDK_DISABLED", "true")
    train(memexport.OTelExporter(traces=True))
    assert not caplog.records


def test_a_fork_exports_no_spans(tmp_path):
    (tmp_path / "train.py").write_text(FORKING)
    variables = {**os.environ, "OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none"}
    command = [sys.executable, "-m", "memexport", "run", "--otlp-traces", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"training step"') == 3
    assert done.stdout.count('"name": "forward"') == 3


FORKING = """
import os, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(3):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    if number == 1:
        time.sleep(1.5)
        child = os.fork()
        if child == 0:
            time.sleep(6)
            os._exit(0)
os.waitpid(child, 0)
"""
