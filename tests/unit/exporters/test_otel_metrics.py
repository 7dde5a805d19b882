"""The table of metrics keeps OpenTelemetry's rules, and what dashboards rely on does not change."""

from __future__ import annotations

import re

from memexport.exporters._otel_metrics import METRICS

TABLE = """
memexport.memory.allocated | up-down | By | memexport.device
memexport.memory.active | up-down | By | memexport.device
memexport.memory.reserved | up-down | By | memexport.device
memexport.memory.allocated.peak | gauge | By | memexport.device
memexport.memory.active.peak | gauge | By | memexport.device
memexport.memory.reserved.peak | gauge | By | memexport.device
memexport.memory.usage | up-down | By | memexport.device memexport.category
memexport.module.memory.usage | up-down | By | memexport.device memexport.module memexport.category
memexport.operator.allocation.size | histogram | By | memexport.device memexport.phase
memexport.step.duration | histogram | s | memexport.device
memexport.step.memory.peak | histogram | By | memexport.device
memexport.operators | counter | {operator} | memexport.device
memexport.allocation.retries | counter | {retry} | memexport.device
memexport.ooms | counter | {oom} | memexport.device
memexport.events.dropped | counter | {event} |
hw.gpu.memory.usage | up-down | By | hw.id hw.name hw.vendor
hw.gpu.memory.limit | up-down | By | hw.id hw.name hw.vendor
process.memory.usage | up-down | By |
"""


def test_the_metrics_are_these():
    rows = [(m.name, m.instrument.value, m.unit, " ".join(m.attributes)) for m in METRICS]
    expected = [tuple(cell.strip() for cell in line.split("|")) for line in TABLE.strip().splitlines()]
    assert [(name, kind.removesuffix(" counter"), *rest) for name, kind, *rest in rows] == expected


def test_names_are_lower_case_with_dots_and_say_neither_unit_nor_total():
    for metric in METRICS:
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", metric.name)
        assert not re.search(r"bytes|seconds|_total|count$", metric.name)
        assert metric.description.endswith(".")
