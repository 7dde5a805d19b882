"""Whose operator is it? The tracker's answer against that of an oracle that knows nothing of its method."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from recorded import CollectingExporter, operators, record
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import memexport
from memexport.model import EventKind, Phase


class Oracle(TorchDispatchMode):
    """Knows the module of every operator by writing its path onto the autograd nodes themselves.

    When a module call ends, every node that can be reached from its output and has no label yet was made in
    it. In backward, an operator belongs to the label of the node that is running. (The tracker uses the
    numbers of the nodes and never looks at the graph.)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.seen: list[tuple[str, str | None]] = []
        self.stack: list[str] = []
        self.root = type(model).__name__
        self.parameter_owners: dict[int, str] = {}
        for name, module in model.named_modules():
            for parameter in module._parameters.values():
                self.parameter_owners.setdefault(id(parameter), name or self.root)
        self.handles: list[Any] = []
        for parent in model.modules():
            for name, child in _called_children(parent):
                self._watch(parent, name, child)
        self.handles.append(model.register_forward_pre_hook(lambda *_: self.stack.append(self.root)))
        self.handles.append(model.register_forward_hook(self._label_and_pop, always_call=True))
        self.names: dict[tuple[str, int], str] = {
            (path or self.root, id(child)): f"{path}.{name}" if path else name
            for path, parent in model.named_modules(remove_duplicate=False)
            for name, child in _called_children(parent)
        }

    def _watch(self, parent: nn.Module, name: str, child: nn.Module) -> None:
        if not getattr(child, "_watched", False):
            child._watched = True
            self.handles.append(child.register_forward_pre_hook(self._push))
            self.handles.append(child.register_forward_hook(self._label_and_pop, always_call=True))

    def _push(self, module: nn.Module, args: Any) -> None:
        caller = self.stack[-1] if self.stack else None
        if caller is not None:  # what the caller made of its input before it called is the caller's
            self._label_from(args[0], caller)
        if caller is None:  # recomputed: by whom, the node that is running tells
            label = self._label(torch._C._current_autograd_node())
            parts = [] if label in (None, self.root) else label.split(".")
            ancestors = [".".join(parts[:n]) for n in range(len(parts), 0, -1)] + [self.root]
            path = next(
                (
                    a
                    for a in ancestors
                    if (a.rpartition(".")[0] or self.root, id(module)) in self.names
                    and self.names[a.rpartition(".")[0] or self.root, id(module)] == a
                ),
                None,
            ) or next(self.names[a, id(module)] for a in ancestors if (a, id(module)) in self.names)
        else:
            path = self.names[caller, id(module)]
        self.stack.append(path)

    def _label_and_pop(self, _module: nn.Module, _args: Any, output: torch.Tensor | None) -> None:
        path = self.stack.pop()
        if output is not None:  # checkpointing ends a recomputation with an exception
            self._label_from(output, path)

    def _label_from(self, tensor: torch.Tensor, path: str) -> None:
        todo = [tensor.grad_fn]
        while todo:
            node = todo.pop()
            if node is not None and "module" not in node.metadata:
                node.metadata["module"] = path
                todo += [following for following, _ in node.next_functions]

    def _label(self, node: Any) -> str | None:
        if hasattr(node, "variable"):
            return self.parameter_owners.get(id(node.variable))
        return node.metadata.get("module")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        node = torch._C._current_autograd_node()
        owner = self.stack[-1] if self.stack else None
        if node is not None and owner is None:
            owner = self._label(node)
        self.seen.append((str(func), owner))
        return func(*args, **(kwargs or {}))


def _called_children(parent: nn.Module) -> list[tuple[str, nn.Module]]:
    """Children by name; those in a ModuleList, which is never called itself, are the parent's."""
    found = []
    for name, child in parent._modules.items():
        if isinstance(child, nn.ModuleList):
            found += [(f"{name}.{inner}", grandchild) for inner, grandchild in child._modules.items()]
        else:
            found.append((name, child))
    return found


class Leaf(nn.Module):
    """A module with parameters of its own and an in-place operator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x) * self.scale
        hidden.add_(1.0)
        return torch.nn.functional.relu(hidden, inplace=True)


class Branch(nn.Module):
    """Does work of its own before, between and after its children, one of which is shared."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.norm = Leaf(), Leaf(), shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        x = self.first(x) * 2
        x = self.norm(x).cos()
        return self.second(x).tanh() + self.norm(x)


class Nested(nn.Module):
    """Two branches with one norm in common, and work of the root's own around them."""

    def __init__(self, branches: int = 2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.branches = nn.ModuleList(Branch(self.norm) for _ in range(branches))
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for branch in self.branches:
            x = branch(x) + x
        return self.head(self.norm(x)).exp()


class Checkpointed(Nested):
    """The second branch is run again in backward."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.branches[0](x)
        x = checkpoint(self.branches[1], x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


def one_backward(model: nn.Module) -> None:
    model(torch.randn(3, 4)).sum().backward()


def input_needs_grad(model: nn.Module) -> None:
    model(torch.randn(3, 4, requires_grad=True)).sum().backward()


def two_losses(model: nn.Module) -> None:
    result = model(torch.randn(3, 4))
    first, second = result.sum(), result.pow(2).mean()
    first.backward(retain_graph=True)
    second.backward()


def called_three_times(model: nn.Module) -> None:
    x = torch.randn(3, 4)
    (model(x).sum() + model(x * 2).sum()).backward()
    model(x).sum().backward()


def some_of_it_frozen(model: nn.Module) -> None:
    for parameter in model.branches[0].parameters():
        parameter.requires_grad_(False)
    model(torch.randn(3, 4)).sum().backward()


def through_autograd_grad(model: nn.Module) -> None:
    loss = model(torch.randn(3, 4)).sum()
    torch.autograd.grad(loss, list(model.parameters()))


WORK = [one_backward, input_needs_grad, two_losses, called_three_times, some_of_it_frozen]
CASES = [
    (make, work)
    for make in (Nested, partial(Checkpointed, reentrant=False), partial(Checkpointed, reentrant=True))
    for work in WORK
] + [(make, through_autograd_grad) for make in (Nested, partial(Checkpointed, reentrant=False))]


@pytest.mark.parametrize(("make", "work"), CASES)
def test_every_operator_belongs_to_the_module_that_the_graph_says(
    make: Callable[[], Nested], work: Callable[[nn.Module], None]
) -> None:
    model = make()
    oracle = Oracle(model)
    exporter = CollectingExporter()
    with oracle, memexport.Tracker(model, exporters=[exporter]):
        work(model)
    ours = [(event.name, event.module) for event in operators(exporter.events())]
    assert len(ours) > 40
    assert ours == oracle.seen


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_runs_again_is_recompute_and_nothing_else_is(*, reentrant: bool) -> None:
    model = Checkpointed(reentrant=reentrant)
    seen = operators(record(lambda _: one_backward(model), model))
    phases = [event.phase for event in seen]
    again = [event for event in seen if event.phase is Phase.RECOMPUTE]
    first = [
        e.name
        for e in seen
        if e.phase is Phase.FORWARD
        and e.module
        and e.module.startswith("branches.1")
        and "detach" not in e.name
    ]
    assert {event.module.split(".")[:2] == ["branches", "1"] for event in again} == {True}
    # Without reentrancy, recomputation stops as soon as nothing more is needed.
    recomputed = [event.name for event in again if "detach" not in event.name]
    assert recomputed == first[: len(recomputed)] and len(recomputed) > len(first) // 2
    assert phases.index(Phase.BACKWARD) < phases.index(Phase.RECOMPUTE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_function_that_is_no_module_is_recompute_too(*, reentrant: bool) -> None:
    x = torch.randn(3, requires_grad=True)
    seen = operators(
        record(lambda _: checkpoint(lambda t: t.sin().exp(), x, use_reentrant=reentrant).sum().backward())
    )
    again = [event.name for event in seen if event.phase is Phase.RECOMPUTE]
    assert "aten.sin.default" in again
    assert "aten.cos.default" not in again  # the derivative of sin is backward


def test_a_parent_owns_what_follows_its_child() -> None:
    model = Nested()
    seen = operators(record(lambda _: one_backward(model), model))
    owners = {event.name: event.module for event in seen if event.phase is Phase.FORWARD}
    assert owners["aten.exp.default"] == "Nested"
    assert owners["aten.tanh.default"] == "branches.1"
    assert owners["aten.relu_.default"] == "branches.1.second"


def test_a_shared_module_shows_under_the_path_it_was_called_by() -> None:
    model = Nested()
    seen = operators(record(lambda _: one_backward(model), model))
    norms = [e.module for e in seen if e.name == "aten.native_layer_norm.default"]
    assert norms == ["branches.0.norm", "branches.0.norm", "branches.1.norm", "branches.1.norm", "norm"]


def test_modules_are_known_under_no_grad_too() -> None:
    model = Nested()

    def work(_: memexport.Tracker) -> None:
        with torch.no_grad():
            model(torch.ones(3, 4)).sum()

    seen = operators(record(work, model))
    assert [e.module for e in seen if e.name == "aten.tanh.default"] == ["branches.0", "branches.1"]
    assert {e.phase for e in seen if e.module is not None} == {Phase.FORWARD}


def test_double_backward_belongs_to_the_module_whose_backward_it_differentiates() -> None:
    model = Nested(branches=1)

    def work(_: memexport.Tracker) -> None:
        x = torch.randn(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    seen = operators(record(work, model))
    own = [e for e in seen if e.phase is Phase.BACKWARD and e.name == "aten.tanh_backward.default"]
    assert {e.module for e in own} == {"branches.0"}
    penalty = [e for e in seen if e.name == "aten.pow.Tensor_Scalar"]
    assert [e.module for e in penalty if e.phase is not Phase.BACKWARD] == [None]
    third = [
        e for e in seen if e.phase is Phase.BACKWARD and e.name == "aten.native_layer_norm_backward.default"
    ]
    assert {e.module for e in third} <= {"branches.0.norm", "norm"}


@pytest.mark.parametrize("where", ["pre", "post", "forward"])
def test_a_hook_or_forward_that_raises_leaves_no_module_behind(where: str) -> None:
    model = Nested()

    def fail(*_: Any) -> None:
        raise ValueError("deliberate")

    inner = model.branches[1].second
    handle = {
        "pre": lambda: inner.register_forward_pre_hook(fail),
        "post": lambda: inner.register_forward_hook(fail),
        "forward": lambda: inner.linear.register_forward_pre_hook(fail),
    }[where]()

    def work(_: memexport.Tracker) -> None:
        with pytest.raises(ValueError, match="deliberate"):
            model(torch.randn(3, 4))
        handle.remove()
        torch.ones(3).neg()
        one_backward(model)

    seen = operators(record(work, model))
    outside = [e for e in seen if e.name == "aten.neg.default" and e.phase is not Phase.BACKWARD]
    assert [e.module for e in outside] == [None]
    assert [e.module for e in seen if e.name == "aten.exp.default"] == ["Nested"]


def test_an_interrupt_that_runs_no_hooks_is_forgotten_at_the_next_step() -> None:
    model = Nested()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def work(tracker: memexport.Tracker) -> None:
        handle = model.branches[0].first.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(3, 4))
        handle.remove()
        tracker.step()
        torch.ones(3).neg()

    seen = operators(record(work, model))
    assert [e.module for e in seen if e.name == "aten.neg.default"] == [None]


def test_several_models_do_not_share_names() -> None:
    generator, critic = nn.Sequential(nn.Linear(4, 4)), Nested(branches=1)

    def work(_: memexport.Tracker) -> None:
        critic(generator(torch.randn(3, 4))).sum().backward()

    events = record(work, generator, critic)
    modules = {e.module for e in operators(events)}
    assert {"0", "Nested", "Nested.head", "Nested.branches.0.norm"} <= modules
    assert "head" not in modules


def test_models_that_were_not_given_are_met_when_they_are_called() -> None:
    model = Nested(branches=1)
    loss = nn.MSELoss()

    def work(_: memexport.Tracker) -> None:
        loss(model(torch.randn(3, 4)), torch.zeros(3, 4)).backward()

    seen = operators(record(work))
    assert [e.module for e in seen if e.name == "aten.mse_loss.default"] == ["MSELoss"]
    assert [e.module for e in seen if e.name == "aten.tanh.default"] == ["branches.0"]
    accumulated = {e.module for e in seen if e.name == "aten.detach.default" and e.phase is Phase.BACKWARD}
    assert "branches.0.first.linear" in accumulated


def test_a_loss_module_that_is_made_anew_in_every_step_keeps_its_name() -> None:
    model = Nested(branches=1)

    def work(_: memexport.Tracker) -> None:
        for _ in range(3):
            nn.MSELoss()(model(torch.randn(3, 4)), torch.zeros(3, 4)).backward()

    seen = operators(record(work, model))
    assert {e.module for e in seen if e.name == "aten.mse_loss.default"} == {"MSELoss"}


def test_module_spans_nest_as_the_calls_do() -> None:
    model = Nested(branches=1)
    events = record(lambda _: one_backward(model), model)
    spans = {e.module: e for e in events if e.kind is EventKind.SPAN and e.module is not None}
    assert spans["branches.0.first.linear"].name == "Linear"
    for inner, outer in [("branches.0.first.linear", "branches.0.first"), ("branches.0", "Nested")]:
        assert spans[outer].time_unix_ns < spans[inner].time_unix_ns
        assert _end(spans[inner]) < _end(spans[outer])
    tanh = next(e for e in events if e.name == "aten.tanh.default")
    assert spans["branches.0"].time_unix_ns < tanh.time_unix_ns
    assert _end(tanh) < _end(spans["branches.0"])


def _end(event: Any) -> int:
    return event.time_unix_ns + event.duration_ns
