"""compat.MemTracker against torch's: equal to the byte, and where not, theirs is shown to be wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import (
    CASES,
    WORK,
    Case,
    Ours,
    Theirs,
    accumulate,
    backward_only,
    by_module,
    cpu,
    evaluate,
    frozen,
    mlp,
    snapshots_of,
    step,
    watch,
)
from torch import nn

REENTRANT = "reentrant checkpointing"


def comparable(case: str, work: str, *, external: bool) -> bool:
    """Whether torch lets this run, and its tracker does not disturb what it measures (see below)."""
    refused = case == REENTRANT and work == "functional_gradients"
    return not refused and (external or case != "dicts in and out")


RUNS = [
    *((case, work, "AdamW", True) for case in CASES for work in WORK),
    *((case, "step", "AdamW", False) for case in CASES),
    *((case, "step", "SGD with momentum", True) for case in CASES),
]


@pytest.mark.parametrize(("case", "work", "optimizer", "external"), RUNS)
def test_every_category_is_equal_to_the_byte(case: str, work: str, optimizer: str, external: bool) -> None:
    if not comparable(case, work, external=external):
        pytest.skip("shown below")
    theirs = watch(Theirs, CASES[case], WORK[work], optimizer, external=external)
    ours = watch(Ours, CASES[case], WORK[work], optimizer, external=external)
    assert ours.current == theirs.current
    assert ours.peak == theirs.peak
    wrong_there = case == REENTRANT or (case == "dicts in and out" and work == "accumulate")
    assert_equal_modules(theirs.tracker, ours.tracker, but_for=("Post-Backward",) if wrong_there else ())


def assert_equal_modules(theirs: Any, ours: Any, but_for: tuple[str, ...] = ()) -> None:
    theirs, ours = by_module(theirs), by_module(ours)
    assert list(ours) == list(theirs)
    for name, stats in theirs.items():
        for figure in ("parameter_mem", "buffer_mem", "input_mem", "output_mem", "local_peak"):
            assert getattr(ours[name], figure) == getattr(stats, figure), (name, figure)
        expected, found = snapshots_of(stats), snapshots_of(ours[name])
        for state in but_for:
            expected.pop(state, None)
            found.pop(state, None)
        assert found == expected, name
        assert list(found) == list(expected)


def test_torchs_enum_members_and_plain_text_both_name_a_category() -> None:
    from torch.distributed._tools.mem_tracker import _MemRefType

    (row,) = watch(Ours, CASES["mlp"]).peak.values()
    assert row[_MemRefType.PARAM] == row["Parameter"] == 676 * 4


# ---- where theirs is wrong


def test_torch_fails_on_frozen_parameters_where_ours_counts_them() -> None:
    case = Case(frozen, CASES["mlp"].inputs)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        watch(Theirs, case, step)
    seen = watch(Ours, case, backward_only)
    trained = sum(p.nbytes for p in seen.alive[0].parameters() if p.requires_grad)
    assert cpu(seen.current)["Gradient"] == trained
    assert cpu(seen.current)["Parameter"] == sum(p.nbytes for p in seen.alive[0].parameters())


def test_torch_says_that_backwards_ended_which_never_began() -> None:
    seen = [watch(tracker, CASES[REENTRANT]) for tracker in (Theirs, Ours)]
    theirs, ours = (one.tracker for one in seen)
    name = "Checkpointed.first.1"
    # In the first forward it made no graph, so it had no backward that could end.
    assert "Pre-Backward" not in snapshots_of(by_module(theirs)[name])
    assert "Post-Backward" in snapshots_of(by_module(theirs)[name])
    assert "Post-Backward" not in snapshots_of(by_module(ours)[name])


def test_torch_says_twice_that_a_backward_ended_when_an_input_is_used_again() -> None:
    seen = [watch(tracker, CASES["dicts in and out"], accumulate) for tracker in (Theirs, Ours)]
    leaf_hooks = [len(one.alive[2][0]["y"]._backward_hooks) for one in seen]
    assert leaf_hooks == [2, 0]  # theirs stay on the leaf for ever
    ends = [len(snapshots_of(by_module(one.tracker)["Dicts"])["Post-Backward"]) for one in seen]
    assert ends == [2, 1]  # of one call, after the reset


def test_torch_counts_an_unregistered_leaf_because_its_own_hook_makes_a_view_of_it() -> None:
    def inputs(*, requires_grad: bool) -> Any:
        return lambda: (torch.randn(8, 16, requires_grad=requires_grad),)

    def activations(tracker: Any, *, requires_grad: bool) -> int:
        case = Case(mlp, inputs(requires_grad=requires_grad))
        return cpu(watch(tracker, case, evaluate, external=False).current)["Activation"]

    assert activations(Theirs, requires_grad=False) == 0
    assert activations(Theirs, requires_grad=True) == 8 * 16 * 4
    assert activations(Ours, requires_grad=False) == activations(Ours, requires_grad=True) == 0


class Scaled(nn.Module):
    """The gradient of its parameter is one number, expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() + self.scale.sum()


def test_torch_counts_what_an_expanded_gradient_was_copied_from_as_a_gradient() -> None:
    case = Case(Scaled, lambda: (torch.randn(4),))

    def inside(model: nn.Module, _optimizer: Any, inputs: Any, tracker: Any) -> None:
        # The gradient of the loss stays alive for as long as its owner wants.
        loss = model(*inputs)
        tracker.kept = torch.ones_like(loss)
        loss.backward(tracker.kept)

    theirs, ours = (watch(tracker, case, inside) for tracker in (Theirs, Ours))
    assert cpu(theirs.current)["Gradient"] == 64 * 4 + 4  # the loss' own gradient is no parameter's
    assert cpu(ours.current)["Gradient"] == 64 * 4


class Checkpointing(nn.Module):
    """Checkpoints a function, not a module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(self.expensive, x, use_reentrant=False).sum()

    def expensive(self, x: torch.Tensor) -> torch.Tensor:
        exponential = torch.exp(x @ self.weight)
        self.while_recomputing()
        return torch.sin(exponential)

    def while_recomputing(self) -> None:
        """To be replaced."""


def test_torch_takes_what_a_function_recomputes_for_temporaries() -> None:
    def while_recomputing(tracker_class: Any) -> dict[str, int]:
        model, tracker, found = Checkpointing(), tracker_class(), []
        tracker.track_external(model)
        with tracker:
            loss = model(torch.randn(8, 16))
            model.while_recomputing = lambda: found.append(cpu(tracker.get_tracker_snapshot()))
            loss.backward()
        return found[0]

    theirs, ours = while_recomputing(Theirs), while_recomputing(Ours)
    recomputed = 8 * 16 * 4  # the exponential
    assert ours["Total"] == theirs["Total"]
    assert (theirs["Activation"] + recomputed, theirs["Temp"] - recomputed) == (
        ours["Activation"],
        ours["Temp"],
    )


def test_torch_calls_a_new_modules_parameters_activations_until_it_is_called() -> None:
    sizes, made = {}, []
    for name, tracker_class in (("theirs", Theirs), ("ours", Ours)):
        with tracker_class() as tracker:
            made.append(nn.Linear(8, 8))
            sizes[name] = cpu(tracker.get_tracker_snapshot())
    assert (sizes["theirs"]["Parameter"], sizes["theirs"]["Activation"]) == (0, 288)
    assert (sizes["ours"]["Parameter"], sizes["ours"]["Activation"]) == (288, 0)


def test_torch_refuses_a_second_iteration_where_ours_goes_on() -> None:
    def twice(model: nn.Module, optimizer: Any, inputs: Any, tracker: Any) -> None:
        step(model, optimizer, inputs, tracker)
        step(model, optimizer, inputs, tracker)

    with pytest.raises(NotImplementedError):
        watch(Theirs, CASES["mlp"], twice)
    seen = watch(Ours, CASES["mlp"], twice)
    stats_of = by_module(seen.tracker)
    assert len(stats_of) == 4
    assert all(len(taken) == 1 for stats in stats_of.values() for taken in stats.snapshots.values())


def test_the_second_iteration_is_what_torch_says_of_it_after_a_reset() -> None:
    theirs, ours = [watch(tracker, CASES["checkpointing"], accumulate) for tracker in (Theirs, Ours)]
    assert_equal_modules(theirs.tracker, ours.tracker)


def test_torch_refuses_to_swap_tensors_where_ours_follows() -> None:
    def swap(tracker: Any) -> None:
        model = nn.Linear(4, 4)
        tracker.track_external(model)
        with tracker:
            model(torch.randn(2, 4)).sum().backward()
            model.zero_grad()
            torch.utils.swap_tensors(model.weight, nn.Parameter(torch.zeros(4, 4)))
            model(torch.randn(2, 4)).sum().backward()

    with pytest.raises(RuntimeError, match="weakref"):
        swap(Theirs())
    tracker = Ours()
    swap(tracker)


def test_torch_replaces_the_formatting_of_all_warnings_where_ours_leaves_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import warnings

    from torch.distributed._tools.mod_tracker import ModTracker as TheirModTracker

    from memexport.compat import ModTracker

    class Same(nn.Module):
        def __init__(self, inner: nn.Module | None) -> None:
            super().__init__()
            self.inner = [inner]  # hidden: torch names it after its class, like its caller

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if self.inner[0] is None else self.inner[0](x)

    formatting = warnings.formatwarning
    monkeypatch.setattr(warnings, "formatwarning", formatting)
    names: list[Any] = []
    with ModTracker() as tracker, warnings.catch_warnings(action="error"):
        tracker.register_user_hooks(post_fw_hook=lambda *_: names.append(set(tracker.parents)))
        Same(Same(None))(torch.ones(1))
    assert names == [{"Global", "Same"}] * 2
    assert tracker.parents == {"Global"}
    assert warnings.formatwarning is formatting
    with TheirModTracker(), pytest.warns(UserWarning, match="hierarchy"):
        Same(Same(None))(torch.ones(1))
    assert warnings.formatwarning is not formatting


def test_torch_counts_tensors_on_meta_which_take_no_memory() -> None:
    counted = {}
    for name, tracker in (("torch", Theirs()), ("memexport", Ours())):
        with tracker:
            kept = torch.ones(1000, device="meta") * 2
        snapshot = tracker.get_tracker_snapshot()
        counted[name] = sum(row["Total"] for device, row in snapshot.items() if device.type == "meta")
        assert kept.untyped_storage().nbytes() == 4000
    assert counted == {"torch": 4000, "memexport": 0}
