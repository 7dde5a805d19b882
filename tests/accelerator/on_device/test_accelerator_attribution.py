"""Whose operator is it, where backward runs in a thread of its own? As on the CPU, and as an oracle says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from programs import PROGRAMS, Program
from recorded import CollectingExporter, operators, record, since_start
from test_attribution import Nested, Oracle
from torch import nn
from training import MODELS, Block, batch, mlp, train

import memexport
from memexport.model import Phase

Place = tuple[str, str | None, str]

SAME_ON_THE_CPU = [name for name in MODELS if name != "recurrent"]
"""The CPU computes recurrent layers by other operators."""


def places(events: list[SimpleNamespace]) -> list[Place]:
    """Name, module and phase of each operator, without the copies from one device to another."""
    found = [(e.name, e.module, e.phase.name) for e in operators(events)]
    return [one for one in found if one[0] != "aten._to_copy.default"]


@pytest.mark.parametrize("name", SAME_ON_THE_CPU)
def test_each_operator_is_where_it_is_on_the_cpu(name: str) -> None:
    on_cpu, on_accelerator = train(name, "cpu")[0].events(), train(name, "accel:0")[0].events()
    assert places(on_accelerator) == places(on_cpu)
    in_backward = {e.thread for e in operators(on_accelerator) if e.phase is Phase.BACKWARD}
    assert len(in_backward) == 1
    assert in_backward.pop().startswith("autograd ")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_whatever_a_backward_does_it_does_where_it_does_on_the_cpu(program: Program) -> None:
    def recorded(device: str) -> Counter[Place]:
        torch.manual_seed(0)
        exporter = CollectingExporter()
        program(device, exporter)
        # The engine chooses the order by the nodes' numbers, which each thread gives its own.
        return Counter(places(exporter.events()))

    assert recorded("accel:0") == recorded("cpu")


@pytest.mark.parametrize("name", ["checkpoint", "reentrant-checkpoint"])
def test_what_runs_again_does_so_in_the_engines_thread(name: str) -> None:
    found = operators(train(name, "accel:0")[0].events())
    again = [e for e in found if e.phase is Phase.RECOMPUTE]
    assert {e.thread for e in again} == {e.thread for e in found if e.phase is Phase.BACKWARD}
    first = Counter(
        (e.name, e.module) for e in found if e.phase is Phase.FORWARD and e.thread == "MainThread"
    )
    gelu = ("aten.gelu.default", "blocks.1.feed.1")
    assert Counter((e.name, e.module) for e in again)[gelu] == first[gelu] == 6


@pytest.mark.parametrize("branches", [1, 3])
def test_each_operator_belongs_to_the_module_that_an_oracle_says(branches: int) -> None:
    model = Nested(branches).to("accel")
    oracle, exporter = Oracle(model), CollectingExporter()
    x = torch.randn(3, 4, device="accel", requires_grad=True)
    with oracle, memexport.Tracker(model, exporters=[exporter]):
        for _ in range(2):
            model(x).sum().backward()
    ours = [(e.name, e.module) for e in operators(exporter.events())]
    theirs = [(name, owner) for name, owner in oracle.seen if not name.startswith("prim.")]
    differing = [
        (a, b) for a, b in zip(ours, theirs[-len(ours) :], strict=True) if a != b and b[1] is not None
    ]
    assert differing == []


def penalized(device: str, steps: int) -> list[list[Place]]:
    """What a gradient penalty records, by step: half of its nodes are made in backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 16), nn.Tanh()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, foreach=True)
    exporter = CollectingExporter()
    with memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]) as tracker:
        for _ in range(steps):
            x = torch.randn(3, 16).to(device).requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            gradient.pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()
    found = exporter.events()
    return [places([e for e in found if e.step == step]) for step in range(steps)]


def test_a_backward_that_is_differentiated_is_that_of_its_module() -> None:
    on_cpu, on_accelerator = penalized("cpu", 5), penalized("accel:0", 5)
    for there, here in zip(on_accelerator, on_cpu, strict=True):
        assert [(name, phase) for name, _, phase in there] == [(name, phase) for name, _, phase in here]
        # Of a number that two threads may have given, nothing wrong is said.
        wrong = [(a, b) for a, b in zip(there, here, strict=True) if a[1] not in (None, b[1])]
        assert wrong == []
    # Once their numbers have drifted apart, everything is known.
    assert on_accelerator[-1] == on_cpu[-1]


def test_replicas_that_run_side_by_side_have_the_same_modules() -> None:
    replicas = [Block().to(f"accel:{index}") for index in (0, 1)]
    outputs: dict[int, torch.Tensor] = {}

    def forward(index: int) -> None:
        outputs[index] = replicas[index](batch("block", f"accel:{index}")).sum()

    exporter = CollectingExporter()
    with memexport.Tracker(*replicas, exporters=[exporter]):
        threads = [threading.Thread(target=forward, args=(index,)) for index in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (outputs[0] + outputs[1].to("accel:0")).backward()
    found = operators(since_start(exporter.events()))
    for device in ("accel:0", "accel:1"):
        there = [e for e in found if e.device == device and e.phase is Phase.BACKWARD]
        assert any(e.name == "aten.gelu_backward.default" for e in there)
    assert {e.module for e in found if e.name == "aten.gelu.default"} == {"feed.1", "Block (2).feed.1"}


def test_two_models_that_train_in_turns_keep_their_own() -> None:
    def turns(device: str) -> list[Place]:
        torch.manual_seed(0)
        made, judge = mlp().to(device), nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1)).to(device)
        optimizers = [torch.optim.Adam(one.parameters(), foreach=True) for one in (made, judge)]

        def work(_: memexport.Tracker) -> None:
            for _ in range(2):
                image = made(torch.randn(3, 16).to(device))
                judge(image.detach()).mean().backward()
                optimizers[1].step()
                (-judge(image)).mean().backward()
                optimizers[0].step()

        return places(record(work, made, judge))

    assert turns("accel:0") == turns("cpu")


def test_gradients_may_be_accumulated_in_graphs_that_are_kept() -> None:
    def kept(device: str) -> list[Place]:
        torch.manual_seed(0)
        model = mlp().to(device)

        def work(_: memexport.Tracker) -> None:
            loss = model(torch.randn(3, 16).to(device)).sum()
            other = model(torch.randn(3, 16).to(device)).sum()
            loss.backward(retain_graph=True)
            other.backward()
            loss.backward()

        return places(record(work, model))

    # Whether a gradient is added to another in place is the engine's choice.
    added = ("aten.add_.Tensor", "aten.add.Tensor")
    on_accelerator, on_cpu = ([one for one in kept(on) if one[0] not in added] for on in ("accel:0", "cpu"))
    assert on_accelerator == on_cpu


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_leaves_nothing_behind(where: str) -> None:
    model = mlp().to("accel")

    def fail(*_: object) -> None:
        raise ValueError("deliberate")

    def work(_: memexport.Tracker) -> None:
        hooked: Callable[..., object] = (
            model[2].register_forward_pre_hook if where == "forward" else model[2].register_full_backward_hook
        )
        handle = hooked(fail)
        with pytest.raises(ValueError, match="deliberate"):
            model(torch.ones(2, 16, device="accel")).sum().backward()
        handle.remove()
        torch.zeros(1, device="accel")
        model(torch.ones(2, 16, device="accel")).sum().backward()

    found = operators(record(work, model))
    (between,) = [e for e in found if e.name == "aten.zeros.default"]
    assert between.module is None
    tanh = [e for e in found if e.name == "aten.tanh_backward.default"]
    assert {(e.module, e.phase) for e in tanh} == {("3", Phase.BACKWARD)}


def test_shapes_and_stacks_are_recorded_though_the_engines_thread_has_no_python_below() -> None:
    model, exporter = mlp().to("accel"), CollectingExporter()
    with memexport.Tracker(model, exporters=[exporter], record_shapes=True, record_stacks=True) as tracker:
        model(torch.randn(3, 16).to("accel")).sum().backward()
    assert tracker.summary().warnings == ()
    found = operators(since_start(exporter.events()))
    (forward,) = [e for e in found if e.name == "aten.addmm.default" and e.module == "0"]
    (backward,) = [e for e in found if e.name == "aten.tanh_backward.default"]
    texts, stacks = exporter.tables.strings, exporter.tables.stacks
    assert texts.get(forward.inputs) == "float32[64], float32[3, 16], float32[16, 64]"
    assert texts.get(backward.inputs) == "float32[3, 16], float32[3, 16]"
    assert "test_accelerator_attribution.py" in texts.get(stacks.frames(forward.stack)[-1])
    assert backward.stack == 0
