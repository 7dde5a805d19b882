"""What compat.MemTracker promises by itself: every category through a step, many steps, and no trace left."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
from side_by_side import CASES, Ours, by_module, cpu, mlp, snapshots_of, watch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from memexport.compat import _capture
from memexport.compat._categories import taken_bytes
from memexport.compat._module_stats import MOST_SNAPSHOTS, ModState


def bytes_of(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def test_parameters_gradients_and_optimizer_state_are_followed_through_a_step() -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    parameters = bytes_of(model.parameters())
    tracker = Ours()
    tracker.track_external(model, optimizer)

    def now(category: str) -> int:
        return cpu(tracker.get_tracker_snapshot())[category]

    with tracker:
        loss = model(torch.randn(8, 16)).sum()
        assert (now("Parameter"), now("Gradient"), now("Optstate")) == (parameters, 0, 0)
        assert now("Activation") > 8 * 32 * 4
        loss.backward()
        assert (now("Gradient"), now("Temp")) == (parameters, 0)
        optimizer.step()
        states = [s for state in optimizer.state.values() for s in state.values()]
        assert now("Optstate") == bytes_of(states)
        optimizer.zero_grad()
        assert now("Gradient") == 0
    assert now("Parameter") == parameters


def test_external_modules_optimizers_and_tensors_are_counted_before_anything_runs() -> None:
    model, batch = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(batch).sum().backward()
    optimizer.step()
    tracker = Ours()
    tracker.track_external(model, [optimizer, None], {"batch": batch})
    row = cpu(tracker.get_tracker_snapshot())
    assert row["Parameter"] == row["Gradient"] == row["Optstate"] == bytes_of(model.parameters())
    assert (row["Buffer"], row["Other"]) == (bytes_of(model.buffers()), batch.nbytes)


def test_anything_else_cannot_be_tracked() -> None:
    with pytest.raises(TypeError, match="str"):
        Ours().track_external("model")


def test_tensors_are_followed_before_and_after_the_context() -> None:
    batch = torch.randn(8, 4)
    tracker = Ours()
    tracker.track_external(batch)
    with tracker:
        kept = batch * 2
    assert cpu(tracker.get_tracker_snapshot())["Total"] == 2 * batch.nbytes
    del kept, batch
    assert tracker.get_tracker_snapshot() == {}


def test_a_second_context_has_a_peak_of_its_own() -> None:
    tracker = Ours()
    kept = []
    with tracker:
        kept.append(torch.ones(1000) + 1)
    with tracker, tracker:  # depth counts
        kept.append(torch.ones(10))
    assert cpu(tracker.get_tracker_snapshot("peak"))["Total"] == 4000 + 40


def test_a_snapshot_is_current_or_peak() -> None:
    with pytest.raises(ValueError, match="best"):
        Ours().get_tracker_snapshot("best")


def test_zero_grad_without_set_to_none_keeps_the_gradients() -> None:
    def work(model: nn.Module, optimizer: Any, inputs: Any, _tracker: Any) -> None:
        model(*inputs).sum().backward()
        optimizer.zero_grad(set_to_none=False)

    seen = watch(Ours, CASES["mlp"], work)
    assert cpu(seen.current)["Gradient"] == bytes_of(seen.alive[0].parameters())


def test_parameters_that_are_swapped_are_followed() -> None:
    model, tracker = nn.Linear(4, 4, bias=False), Ours()
    tracker.track_external(model)
    with tracker:
        larger = nn.Parameter(torch.zeros(8, 4))
        torch.utils.swap_tensors(model.weight, larger)
        del larger
        model(torch.randn(2, 4)).sum().backward()
        row = cpu(tracker.get_tracker_snapshot())
    assert (row["Parameter"], row["Gradient"]) == (128, 128)


def test_parameters_that_replace_others_are_followed_without_being_registered() -> None:
    model, tracker = nn.Linear(4, 4, bias=False), Ours()
    tracker.track_external(model)
    with tracker:
        model(torch.randn(2, 4))
        model.weight = nn.Parameter(torch.zeros(8, 4))
        model(torch.randn(2, 4)).sum().backward()
        row = cpu(tracker.get_tracker_snapshot())
    assert (row["Parameter"], row["Gradient"]) == (128, 128)


def test_a_resized_storage_gives_its_bytes_back() -> None:
    tracker = Ours()
    with tracker:
        made = torch.ones(1000)
        made.untyped_storage().resize_(0)
        assert tracker.get_tracker_snapshot() == {}


def test_the_snapshots_of_checkpointing_come_in_the_order_in_which_they_happen() -> None:
    seen = watch(Ours, CASES["checkpointing"])
    states = list(snapshots_of(by_module(seen.tracker)["Checkpointed.first"]))
    assert states.index("Post-Forward") < states.index("Pre-Backward") < states.index("Pre-Forward-AC")
    assert states.index("Pre-Forward-AC") < states.index("Post-Forward-AC") < states.index("Post-Backward")


def test_a_module_that_is_called_in_a_loop_has_a_snapshot_of_each_call() -> None:
    seen = watch(Ours, CASES["a module called in a loop"])
    stats = by_module(seen.tracker)["Looped.cell"]
    assert [len(stats.snapshots[state]) for state in (ModState.PRE_FW, ModState.PEAK_BW)] == [3, 3]


def test_a_module_that_is_gone_is_forgotten() -> None:
    tracker = Ours()
    with tracker:
        model = nn.Linear(4, 4)
        loss = model(torch.randn(2, 4)).sum()
        assert len(tracker.memory_tracking) == 1
        del model
        gc.collect()
        loss.backward()
        assert len(tracker.memory_tracking) == 0


def test_reset_mod_stats_forgets_modules_but_not_bytes() -> None:
    seen = watch(Ours, CASES["mlp"])
    seen.tracker.reset_mod_stats()
    assert len(seen.tracker.memory_tracking) == 0
    assert seen.tracker.get_tracker_snapshot() == seen.current


def test_an_exception_in_a_module_reaches_the_program_and_nothing_else_changes() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("the program's own")

    with Ours() as tracker, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="the program's own"):
            nn.Sequential(nn.Linear(4, 4), Failing())(torch.randn(2, 4))
        assert torch.equal(mlp().eval()(torch.zeros(1, 16)).isnan(), torch.zeros(1, 4, dtype=torch.bool))
    assert tracker.get_tracker_snapshot("peak")


def test_an_error_of_ours_reaches_nobody(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(_capture.RegisteredCapture, "_gradient_arrives", broken)
    model = mlp()
    with Ours():
        model(torch.randn(2, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert "stopped recording" in caplog.text


def hooks_left(model: nn.Module) -> list[Any]:
    """Every hook there is, and every mode."""
    register = torch.nn.modules.module
    left = [getattr(register, name) for name in vars(register) if name.startswith("_global_")]
    # torch itself keeps a note, id: True, of each hook there was that was always called.
    left = [hooks for hooks in left if hooks and any(callable(hook) for hook in hooks.values())]
    left += [parameter._backward_hooks for parameter in model.parameters() if parameter._backward_hooks]
    left += [hooks for module in model.modules() for name in vars(module) if (hooks := _hooks(module, name))]
    return left + _get_current_dispatch_mode_stack()


def _hooks(module: nn.Module, name: str) -> Any:
    return getattr(module, name) if name.endswith("_hooks") else None


def test_no_hook_is_left() -> None:
    before = torch.UntypedStorage.resize_
    seen = watch(Ours, CASES["dicts in and out"])
    assert hooks_left(seen.alive[0]) == []
    assert seen.alive[2][0]["y"]._backward_hooks == {}
    assert torch.UntypedStorage.resize_ is before


def sizes_of(tracker: Any) -> list[int]:
    """How large whatever could grow is."""
    capture, fold = tracker._capture, tracker._fold
    taken = sum(len(t) for s in tracker.memory_tracking.values() for t in s.snapshots.values())
    return [
        taken,
        len(capture.storages.live),
        len(capture.log_bytes),
        len(tracker._stats),
        len(fold._open),
        len(capture._gradient_hooks),
        len(tracker._mod_tracker._until_end),
        len(tracker._mod_tracker._leaf_handles),
        len(capture.labels.names),
    ]


def test_five_hundred_steps_keep_no_more_than_five() -> None:
    torch.manual_seed(0)
    model, batch = CASES["checkpointing"].model(), torch.randn(8, 16, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters())
    tracker = Ours()
    tracker.track_external(model, optimizer)
    sizes = {}
    with tracker:
        for number in range(1, 501):
            model(batch).sum().backward()
            with torch.no_grad():
                model(batch)
            optimizer.step()
            optimizer.zero_grad()
            if number in (5, 500):
                sizes[number] = sizes_of(tracker)
    assert sizes[5] == sizes[500]
    assert hooks_left(model) == []


def test_snapshots_of_one_iteration_are_bounded() -> None:
    cell = nn.Identity()

    class Long(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(MOST_SNAPSHOTS + 5):
                x = cell(x)
            return x

    with Ours() as tracker:
        Long()(torch.ones(1))
        stats = tracker.memory_tracking[cell]
        assert len(stats.snapshots[ModState.PRE_FW]) == MOST_SNAPSHOTS


def test_cuda_takes_blocks_of_512_bytes() -> None:
    assert [taken_bytes(size, "cuda") for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    assert taken_bytes(513, "cpu") == 513
