"""Which OpenTelemetry span was active: in MARKERs, exactly where there was one."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from recorded import CollectingExporter
from torch import nn

import memexport
from memexport.model import EventBatch, EventKind

TRACER = TracerProvider(shutdown_on_exit=False).get_tracer("tests")
ONE_STEP = """
import sys
import torch, memexport
model = torch.nn.Linear(4, 1)
with memexport.Tracker(exporters=["run.jsonl"]) as tracker:
    model(torch.ones(3, 4)).sum().backward()
    tracker.step()
print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def traceparent(span: trace.Span) -> str:
    """As https://www.w3.org/TR/trace-context/ has it."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def markers(exporter: CollectingExporter) -> list[tuple[str, str | None]]:
    """Names of the MARKERs and their traceparents."""
    return [
        (event.name, exporter.tables.strings.get(event.inputs))
        for event in exporter.events()
        if event.kind is EventKind.MARKER
    ]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int = 8) -> None:
    """One training step."""
    model(torch.ones(rows, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def training() -> SimpleNamespace:
    model = nn.Linear(4, 4)
    return SimpleNamespace(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("capture", ["operators", "allocator"])
def test_each_marker_has_the_span_that_was_active(training: SimpleNamespace, capture: Any) -> None:
    exporter = CollectingExporter()
    spans = []
    with memexport.Tracker(training.model, exporters=[exporter], capture=capture) as tracker:
        for number in range(3):
            with TRACER.start_as_current_span("step") as span:
                spans.append(traceparent(span))
                step(training.model, training.optimizer, 4096 if number == 1 else 8)
                tracker.mark(f"done {number}")
                tracker.step()
        tracker.mark("outside")
    found = markers(exporter)
    assert found[0] == ("start", None)
    for number, span in enumerate(spans):
        names = ["fw_bw_boundary", f"done {number}", "step"]
        assert found[1 + 3 * number :][:3] == [(name, span) for name in names]
    assert found[10:] == [("outside", None), ("peak", spans[1])]


def test_only_markers_have_it_and_operators_keep_their_arguments(training: SimpleNamespace) -> None:
    exporter = CollectingExporter()
    with (
        TRACER.start_as_current_span("all") as span,
        memexport.Tracker(exporters=[exporter], record_shapes=True),
    ):
        step(training.model, training.optimizer)
    strings = exporter.tables.strings
    for event in exporter.events():
        text = strings.get(event.inputs)
        if event.kind is EventKind.MARKER:
            assert text == traceparent(span)
        elif event.kind is EventKind.OPERATOR:
            assert text is None or "float32" in text
        else:
            assert text is None


def test_without_a_span_there_is_nothing(training: SimpleNamespace) -> None:
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        step(training.model, training.optimizer)
        tracker.step()
    assert not EventBatch.concat(exporter.batches).inputs.any()


def test_a_span_that_is_of_no_kind_anybody_knows_harms_nothing(
    training: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_current_span", lambda: 1 / 0)
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        step(training.model, training.optimizer)
    assert tracker.summary().warnings == ()
    assert {traced for _, traced in markers(exporter)} == {None}


def test_running_out_of_memory_is_marked_and_counted_with_the_span_that_it_was_raised_in() -> None:
    exporter = CollectingExporter()
    tracker = memexport.Tracker(exporters=[exporter])

    def too_much() -> None:
        with TRACER.start_as_current_span("large batch") as span:
            span_of.append(traceparent(span))
            raise_in_operator()

    span_of: list[str] = []
    with pytest.raises(torch.OutOfMemoryError), tracker:
        torch.ones(3)
        too_much()
    found = markers(exporter)
    assert ("oom", span_of[0]) in found
    assert not [name for name, _ in found if name.startswith("exception")]
    assert exporter.finished is not None
    assert exporter.finished.ooms == 1


@torch.library.custom_op("memexport_tests::out_of_memory", mutates_args=())
def _out_of_memory(x: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def raise_in_operator() -> None:
    """As an allocator does it."""
    _out_of_memory(torch.ones(1))


def test_an_error_that_is_caught_is_not_marked() -> None:
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]), pytest.raises(torch.OutOfMemoryError):
        raise_in_operator()
    assert [name for name, _ in markers(exporter)] == ["start", "peak"]
    assert exporter.finished is not None
    assert exporter.finished.ooms is None


def test_a_program_without_opentelemetry_gets_none_by_us(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONE_STEP], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert "traceparent" not in (tmp_path / "run.jsonl").read_text()


def test_run_marks_a_program_that_ran_out_of_memory(tmp_path: Any) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(2)\nraise torch.OutOfMemoryError('full')\n")
    command = [sys.executable, "-m", "memexport", "run", "-o", "run.memx", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "OutOfMemoryError: full" in done.stderr
    with memexport.open(tmp_path / "run.memx") as recording:
        names = {id_ for batch in recording.batches() for id_ in batch.name.tolist()}
        assert recording.tables.strings.find("oom") in names
        assert recording.end().ooms == 1


def test_lines_of_markers_name_it_and_those_of_operators_do_not(
    training: SimpleNamespace, tmp_path: Any
) -> None:
    path = tmp_path / "run.jsonl"
    with TRACER.start_as_current_span("all") as span, memexport.Tracker(exporters=[path]):
        step(training.model, training.optimizer)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    found = {event["kind"] for event in events if "traceparent" in event}
    assert found == {"marker"}
    assert {event.get("traceparent") for event in events if event["kind"] == "marker"} == {traceparent(span)}
    assert not [event for event in events if "inputs" in event]
