"""Steps, phases and markers: what is going on, and since when."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from recorded import operators, record
from torch import nn

import memexport
from memexport.model import EventKind, Phase, Tables
from memexport.tracker import rows
from memexport.tracker.chunk import Rows
from memexport.tracker.rows import Labels
from memexport.tracker.spans import PhaseRuns


def two_steps(model: nn.Module, optimizer: torch.optim.Optimizer, tracker: memexport.Tracker) -> None:
    for _ in range(2):
        x = torch.randn(3, 4)
        model(x).pow(2).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tracker.step()


def recorded_steps(optimizer_class: type = torch.optim.AdamW) -> list[SimpleNamespace]:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    return record(lambda tracker: two_steps(model, optimizer, tracker), model, optimizer=optimizer)


def spans(events: list[SimpleNamespace], name: str) -> list[SimpleNamespace]:
    return [e for e in events if e.kind is EventKind.SPAN and e.module is None and e.name == name]


def test_every_operator_has_the_phase_in_which_it_runs() -> None:
    events = operators(recorded_steps())
    phases = {}
    for event in events:
        phases.setdefault(event.name, set()).add(event.phase)
    assert phases["aten.randn.default"] == {Phase.OTHER}
    assert phases["aten.relu.default"] == {Phase.FORWARD}
    assert phases["aten.pow.Tensor_Scalar"] >= {Phase.FORWARD}  # the loss
    assert phases["aten.threshold_backward.default"] == {Phase.BACKWARD}
    assert phases["aten.clamp.default"] == {Phase.OTHER}  # clipping, after backward
    assert phases["aten.addcdiv_.default"] == {Phase.OPTIMIZER}


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop])
def test_the_step_of_any_optimizer_is_the_phase_optimizer(optimizer_class: type) -> None:
    events = recorded_steps(optimizer_class)
    assert len(spans(events, "optimizer")) == 2


def test_an_optimizer_that_calls_a_closure_runs_forward_and_backward_inside_its_step() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        return loss

    seen = operators(record(lambda _: optimizer.step(closure), model, optimizer=optimizer))
    assert {e.phase for e in seen} == {Phase.OPTIMIZER, Phase.FORWARD, Phase.BACKWARD}
    assert {e.phase for e in seen if e.module == "Linear"} == {Phase.FORWARD, Phase.BACKWARD}


def test_each_step_is_a_span_that_holds_its_phases_in_order() -> None:
    events = recorded_steps()
    steps = spans(events, "step")
    assert [step.step for step in steps] == [0, 1]
    for step in steps:
        phases = [
            next(s for s in spans(events, name) if s.step == step.step)
            for name in ("forward", "backward", "optimizer")
        ]
        times = [step.time_unix_ns, *(t for p in phases for t in (p.time_unix_ns, end(p))), end(step)]
        assert times == sorted(times)
    assert end(steps[0]) == steps[1].time_unix_ns


def test_a_phase_holds_its_operators_and_its_modules() -> None:
    events = recorded_steps()
    for name, phase in [
        ("forward", Phase.FORWARD),
        ("backward", Phase.BACKWARD),
        ("optimizer", Phase.OPTIMIZER),
    ]:
        first, second = spans(events, name)
        for event in events:
            if (
                event.phase is phase
                and event.kind in (EventKind.OPERATOR, EventKind.SPAN)
                and event.step >= 0
            ):
                span = (first, second)[event.step]
                assert span.time_unix_ns <= event.time_unix_ns
                assert end(event) <= end(span)


def test_operators_are_numbered_by_the_step_they_ran_in() -> None:
    events = operators(recorded_steps())
    assert [e.step for e in events if e.name == "aten.relu.default"] == [0, 1]
    assert [e.step for e in events] == sorted(e.step for e in events)


def test_a_run_without_steps_is_one_step() -> None:
    events = record(lambda _: torch.ones(3))
    (step,) = spans(events, "step")
    assert step.step == 0


def test_nothing_after_the_last_step_is_no_step() -> None:
    assert len(spans(recorded_steps(), "step")) == 2


def test_the_markers_tell_the_story() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())

    def work(tracker: memexport.Tracker) -> None:
        two_steps(model, optimizer, tracker)
        tracker.mark("done training")

    names = [e.name for e in record(work, model, optimizer=optimizer) if e.kind is EventKind.MARKER]
    step = ["fw_bw_boundary", "step"]
    assert names == ["start", *step, *step, "done training", "peak"]


def test_an_exception_is_marked_and_passes() -> None:
    from recorded import CollectingExporter

    exporter = CollectingExporter()
    with pytest.raises(ZeroDivisionError), memexport.Tracker(exporters=[exporter]):
        torch.ones(1)
        _ = 1 / 0
    assert "exception: ZeroDivisionError" in [e.name for e in exporter.events()]


def test_an_operator_that_fails_is_recorded_and_its_error_passes() -> None:
    def work(_: memexport.Tracker) -> None:
        with pytest.raises(RuntimeError, match="shape"):
            torch.ones(2, 3) @ torch.ones(2, 3)

    assert "aten.mm.default" in [e.name for e in operators(record(work))]


def test_evaluation_does_not_turn_what_follows_into_forward() -> None:
    model = nn.Linear(4, 1)

    def work(_: memexport.Tracker) -> None:
        with torch.no_grad():
            scores = model(torch.ones(3, 4))
        scores.argmax()

    seen = operators(record(work, model))
    assert [e.phase for e in seen if e.name == "aten.argmax.default"] == [Phase.OTHER]


def end(event: SimpleNamespace) -> int:
    return event.time_unix_ns + event.duration_ns


def test_what_autograd_gives_back_is_released_in_backward_and_in_its_module() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))

    def work(_: memexport.Tracker) -> None:
        model(torch.ones(3, 4)).sum().backward()

    events = record(work, model)
    activations = {
        e.address for e in events if e.kind is EventKind.ALLOCATION and e.name == "aten.relu.default"
    }
    released = [e for e in events if e.kind is EventKind.RELEASE and e.address in activations]
    assert [(e.name, e.phase, e.module) for e in released] == [("aten.relu.default", Phase.BACKWARD, "1")]


def test_a_backward_in_a_thread_of_the_engines_own_ends_with_its_step() -> None:
    labels = Labels(Tables())
    operator = labels.code(rows.OPERATOR, "aten.mm.default")
    forward = labels.context(None, Phase.FORWARD, "main")
    backward = labels.context(None, Phase.BACKWARD, "engine")
    logged = b""
    for step in range(3):
        for number, context in enumerate((forward, backward)):
            began = 1000 * (step + 1) + 100 * number
            logged += rows.ROW.pack(operator, context, began, began + 50, 0)
        logged += rows.ROW.pack(rows.STEP, forward, 1000 * (step + 1) + 200, 0, 0)
    phases = PhaseRuns(labels, [Phase.FORWARD, Phase.BACKWARD], boundary=False)
    chunk = Rows.parse(logged, labels)
    found = [d.values for d in phases.read(chunk, np.arange(len(chunk)))]
    assert phases.close() == []
    of_backward = [v for v in found if v["phase"] == Phase.BACKWARD]
    assert [(v["step"], v["time_unix_ns"], v["duration_ns"]) for v in of_backward] == [
        (0, 1099, 51),
        (1, 2099, 51),
        (2, 3099, 51),
    ]
