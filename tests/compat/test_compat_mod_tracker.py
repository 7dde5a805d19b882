"""compat.ModTracker: names, parents and user hooks, in the order in which torch's calls them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from side_by_side import CASES, Case, Checkpointed, loss_of
from torch import nn
from torch.distributed._tools import mod_tracker
from torch.utils.checkpoint import checkpoint

from memexport.compat import ModTracker

TRACKERS: dict[str, Any] = {"torch": mod_tracker.ModTracker, "memexport": ModTracker}
PASSES = ("pre_fw", "post_fw", "pre_bw", "post_bw")


def recorded(tracker: Any) -> list[tuple[str, Any, frozenset[str]]]:
    """Fills with (hook, module's name, parents) while the tracker runs."""
    seen: list[tuple[str, Any, frozenset[str]]] = []

    def note(kind: str) -> Any:
        def hook(module: nn.Module | None, *_: Any) -> None:
            name = tracker.get_known_fqn(module) if module is not None else None
            seen.append((kind, name, frozenset(tracker.parents)))

        return hook

    tracker.register_user_hooks(**{f"{kind}_hook": note(kind) for kind in PASSES})
    return seen


@pytest.mark.parametrize("case", [name for name in CASES if name != "reentrant checkpointing"])
def test_hooks_come_in_torchs_order_with_torchs_parents(case: str) -> None:
    seen = {}
    for name, tracker_class in TRACKERS.items():
        torch.manual_seed(0)
        model, inputs = CASES[case].model(), CASES[case].inputs()
        tracker = tracker_class()
        seen[name] = recorded(tracker)
        with tracker:
            loss_of(model(*inputs)).backward()
        assert tracker.parents == {"Global"}
    assert seen["memexport"] == seen["torch"]
    assert {kind for kind, _, _ in seen["memexport"]} == set(PASSES)


class Block(nn.Module):
    """Takes and returns a dict of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"a": self.linear(values["a"]), "b": values["b"] * 2}


class Stack(nn.Module):
    """Two blocks; `probe` is called while the second runs, and in its backward."""

    def __init__(self, probe: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.probe = probe

    def forward(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        values = self.blocks[0](values)
        self.probe()
        return self.blocks[1](values)


def test_the_hierarchy_is_known_where_modules_take_and_return_dicts() -> None:
    tracker, seen = ModTracker(), []
    inputs = {name: torch.randn(2, 4, requires_grad=True) for name in "ab"}
    with tracker:
        model = Stack(lambda: seen.append((set(tracker.parents), tracker.is_bw)))
        hooked = model.blocks[1].linear.weight
        hooked.register_hook(lambda _: seen.append((set(tracker.parents), tracker.is_bw)))
        loss_of(model(inputs)).backward()
        assert tracker.parents == {"Global"}
    assert seen[0] == ({"Global", "Stack"}, False)
    assert seen[1] == ({"Global", "Stack", "Stack.blocks.1", "Stack.blocks.1.linear"}, True)


def test_a_module_with_two_names_has_that_of_its_caller() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = nn.LayerNorm(4)
            self.first, self.last = nn.Sequential(norm), nn.Sequential(norm)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x))

    names = {}
    for name, tracker_class in TRACKERS.items():
        tracker = tracker_class()
        seen = recorded(tracker)
        with tracker:
            Shared()(torch.randn(2, 4))
        names[name] = [module for kind, module, _ in seen if kind == "pre_fw"]
    assert names["memexport"] == ["Shared", "Shared.first", "Shared.first.0", "Shared.last", "Shared.last.0"]
    # torch: a child of `last` runs while `last` does not.
    assert names["torch"][2] == "Shared.last.0"


def test_names_are_known_of_what_was_called_and_what_is_below_it() -> None:
    model, tracker = nn.Sequential(nn.Linear(4, 4), nn.Identity()), ModTracker()
    with tracker:
        assert tracker.get_known_fqn(model) is None
        model(torch.ones(1, 4))
    assert tracker.get_known_fqn(model[1]) == "Sequential.1"


def test_a_module_that_is_added_later_is_named_below_its_caller() -> None:
    model, tracker = nn.Sequential(nn.Identity()), ModTracker()
    seen = recorded(tracker)
    with tracker:
        model(torch.ones(1))
        model.append(nn.Sequential(nn.Tanh()))
        model(torch.ones(1))
    assert seen[-4][1] == "Sequential.1.0"


def test_only_one_hook_of_a_kind_until_they_are_cleared() -> None:
    tracker, called = ModTracker(), []
    tracker.register_user_hooks(pre_fw_hook=lambda *_: called.append("first"))
    tracker.register_user_hooks(post_fw_hook=lambda *_: called.append("second"))
    with pytest.raises(AssertionError, match="pre_fw_hook"):
        tracker.register_user_hooks(pre_fw_hook=lambda *_: None)
    with tracker:
        nn.Identity()(1)
        tracker.clear_user_hooks()
        nn.Identity()(1)
    assert called == ["first", "second"]


def test_the_hooks_are_told_arguments_outputs_and_gradients() -> None:
    tracker, told = ModTracker(), {}
    for kind in PASSES:
        hook = lambda _module, *values, kind=kind: told.update({kind: values})  # noqa: E731
        tracker.register_user_hooks(**{f"{kind}_hook": hook})
    x = torch.ones(3, requires_grad=True)
    with tracker:
        out = nn.Identity()(x * 2)
        (out * 5).sum().backward()
    (args,), (same_args, output) = told["pre_fw"], told["post_fw"]
    assert args[0] is same_args[0]
    assert output is out
    assert told["pre_bw"][0][0].tolist() == [5.0] * 3
    assert told["post_bw"][0][0][0].tolist() == [5.0] * 3


def test_a_deleted_module_is_none_in_its_backward() -> None:
    tracker, seen = ModTracker(), []
    tracker.register_user_hooks(
        pre_bw_hook=lambda m, _: seen.append(m), post_bw_hook=lambda m, _: seen.append(m)
    )
    with tracker:
        model = nn.Linear(4, 4)
        loss = model(torch.ones(2, 4, requires_grad=True)).sum()
        del model
        gc.collect()
        loss.backward()
    assert seen == [None, None]


def test_checkpointing_runs_forward_hooks_again_inside_backward() -> None:
    tracker, seen = ModTracker(), []
    tracker.register_user_hooks(
        pre_fw_hook=lambda m, _: seen.append(("pre_fw", tracker.get_known_fqn(m), tracker.is_bw)),
        pre_bw_hook=lambda m, _: seen.append(("pre_bw", tracker.get_known_fqn(m), tracker.is_bw)),
    )
    model = Checkpointed()
    with tracker:
        model(torch.randn(2, 16)).sum().backward()
    again = seen.index(("pre_fw", "Checkpointed.first", True))
    assert seen.index(("pre_bw", "Checkpointed.first", True)) < again
    assert again < seen.index(("pre_bw", "Checkpointed.embed", True))


def test_a_backward_inside_a_forward_leaves_the_forward_running() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            linear(x).sum().backward()
            parents.append(set(tracker.parents))
            return x

    linear, parents = nn.Linear(4, 4), []
    for name, tracker_class in TRACKERS.items():
        tracker = tracker_class()
        with tracker:
            if name == "torch":  # which forgets that the module runs
                with pytest.raises(RuntimeError, match="hierarchy"):
                    Inner()(torch.ones(1, 4))
            else:
                Inner()(torch.ones(1, 4))
    assert parents == [{"Global"}, {"Global", "Inner"}]


def test_a_backward_that_raises_leaves_no_parents_for_ever() -> None:
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    class Middle(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Refusing.apply(x)

    left = {}
    for name, tracker_class in TRACKERS.items():
        with tracker_class() as tracker:
            with pytest.raises(ValueError, match="no"):
                Middle()(torch.ones(1, requires_grad=True)).sum().backward()
            for _ in range(2):
                nn.Linear(1, 1)(torch.ones(1)).sum().backward()
            left[name] = set(tracker.parents)
    assert left["memexport"] == {"Global"}
    assert left["torch"] > {"Global"}


def test_an_evaluation_loop_keeps_nothing() -> None:
    kept = {}
    for name, tracker_class in TRACKERS.items():
        model, tracker = nn.Linear(4, 4), tracker_class()
        with tracker, torch.no_grad():
            for _ in range(50):
                model(torch.ones(1, 4))
        kept[name] = getattr(tracker, "_post_bw_callbacks_to_enqueue", None) or tracker.__dict__.get(
            "_until_end"
        )
    assert len(kept["torch"]) == 50  # one for each call, until some backward comes
    assert kept["memexport"] == {}


def test_outside_of_the_context_nothing_is_called() -> None:
    tracker, called = ModTracker(), []
    tracker.register_user_hooks(pre_bw_hook=lambda *_: called.append(1))
    x = torch.ones(2, 4, requires_grad=True)
    with tracker:
        loss = nn.Linear(4, 4)(x).sum()
    loss.backward()
    nn.Linear(4, 4)(x)
    assert called == []
    assert not x._backward_hooks


def test_several_tensors_in_and_out_are_one_backward() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, y * 3

    case = Case(Two, lambda: (torch.ones(2, requires_grad=True) + 0, torch.ones(2, requires_grad=True) + 0))
    seen = {}
    for name, tracker_class in TRACKERS.items():
        tracker = tracker_class()
        seen[name] = recorded(tracker)
        with tracker:
            x, y = case.model()(*case.inputs())
            (x.sum() + y.sum()).backward()
    assert seen["memexport"] == seen["torch"]
    assert [kind for kind, _, _ in seen["memexport"]] == list(PASSES)


def test_reentrant_checkpointing_begins_and_ends_every_backward() -> None:
    tracker = ModTracker()
    seen = recorded(tracker)
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    with tracker:
        checkpoint(inner, torch.ones(1, 4, requires_grad=True) * 2, use_reentrant=True).sum().backward()
        assert tracker.parents == {"Global"}
    assert len([kind for kind, _, _ in seen if kind == "pre_fw"]) == 6
