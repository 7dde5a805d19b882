"""Exports training steps as OpenTelemetry spans, in the thread that calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context

from memexport.exporters._otel_metrics import SCOPE
from memexport.exporters._otel_provider import flush
from memexport.exporters._otel_quiet import kept_back
from memexport.exporters._otel_steps import StepFold, TrainingStep
from memexport.exporters._otel_tracing import OwnTracing
from memexport.exporters._otlp_resource import process_facts, version
from memexport.model import EventBatch, RecordingInfo, Tables

log = logging.getLogger("memexport")

NAME: Final = "training step"
_ALLOCATED: Final = "memexport.memory.allocated"


class StepSpans:
    """Turns a recording's steps into spans, once each is over.

    Args:
        provider: where they go. None: the TracerProvider that the application has set by now; if it has not,
            one as the environment describes it.
    """

    def __init__(self, info: RecordingInfo, tables: Tables, provider: trace.TracerProvider | None) -> None:
        self._fold = StepFold(info, tables)
        self._rank = info.rank
        self._own: OwnTracing | None = None
        used = provider or _application_provider()
        if used is None:
            self._own = OwnTracing(process_facts(info, -1 if info.rank is None else info.rank))
            used = self._own.provider
        self._provider = used
        self._tracer = used.get_tracer(SCOPE, version())

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        for step in self._fold.add(batch):
            if self._own is None:
                self._export(step)
            else:
                with kept_back():  # that its queue is full, for every single span
                    self._export(step)

    def close(self, timeout_s: float) -> None:
        """Export what is left, at most for so long."""
        if self._own is None:
            flush(self._provider, timeout_s, "spans")
        else:
            self._own.close(timeout_s)

    def _export(self, step: TrainingStep) -> None:
        # A context of its own: what is active in this thread is none of the program's.
        parent = _context_of(step.parent)
        attributes = _attributes(step, self._rank)
        span = self._tracer.start_span(NAME, parent, attributes=attributes, start_time=step.begin_ns)
        inside = trace.set_span_in_context(span, Context())
        for phase in step.phases:
            name, began = phase.name, phase.begin_ns
            self._tracer.start_span(name, inside, start_time=began).end(phase.end_ns)
        span.end(step.end_ns)


def _attributes(step: TrainingStep, rank: int | None) -> Mapping[str, int]:
    found = {"memexport.step": step.number}
    if rank is not None:
        found["memexport.rank"] = rank
    for device, use in step.devices.items():
        for moment, size in (("start", use.start), ("peak", use.peak), ("end", use.end)):
            if size >= 0:
                found[f"{_ALLOCATED}.{moment}.{device}"] = size
    return found


def _context_of(traceparent: str | None) -> Context:
    if traceparent is None:
        return Context()
    _, trace_id, span_id, flags = (int(part, 16) for part in traceparent.split("-"))
    parent = trace.SpanContext(trace_id, span_id, is_remote=False, trace_flags=trace.TraceFlags(flags))
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


def _application_provider() -> trace.TracerProvider | None:
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider
