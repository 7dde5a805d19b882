"""compat.FSDPMemTracker beside torch's, on two simulated processes and the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as distributed
import torch.distributed._tools.fsdp2_mem_tracker as theirs_module
import torch.distributed.fsdp as fsdp
import torch.testing._internal.distributed.fake_pg as fake_pg
from side_by_side import Checkpointed, Snapshots, by_module, cpu, snapshots_of
from torch import nn

from memexport import compat

TRACKERS: dict[str, Any] = {"torch": theirs_module.FSDPMemTracker, "memexport": compat.FSDPMemTracker}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    distributed.init_process_group("fake", rank=0, world_size=2, store=fake_pg.FakeStore())
    yield distributed.device_mesh.init_device_mesh("cpu", (2,))
    distributed.destroy_process_group()


def sharded_mlp(mesh: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 8))
    for layer in (model[0], model[3]):
        fsdp.fully_shard(layer, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


class Spaced(Checkpointed):
    """Something runs between the two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Sequential(nn.LayerNorm(16), self.second)


def sharded_checkpointed(mesh: Any) -> nn.Module:
    model = Spaced()
    for block in (model.first, model.second[1]):
        fsdp.fully_shard(block, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def sharded_side_by_side(mesh: Any) -> nn.Module:
    model = Checkpointed()
    for block in (model.first, model.second):
        fsdp.fully_shard(block, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


MODELS = {"mlp": sharded_mlp, "checkpointing": sharded_checkpointed}


def train(tracker_class: Any, make: Any, mesh: Any, steps: int = 1) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = make(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.randn(4, 16)
    tracker = tracker_class(model, optimizer)
    tracker.track_inputs((batch, "no tensor"))
    with tracker:
        for number in range(steps):
            if number:
                tracker.reset_mod_stats()
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return tracker, model


def without_late_gradients(snapshots: list[Any], *, after_post_backward: bool) -> list[dict[str, int]]:
    """What torch must be right about: it finds out late which temporaries are gradients."""
    rows = []
    for snapshot in snapshots:
        row = cpu(snapshot)
        row["Temp"] += row.pop("Unsharded Grad")
        if after_post_backward:  # torch's tracker itself keeps one gradient alive here, see below
            del row["Temp"], row["Total"]
        rows.append(row)
    return rows


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_every_category_is_torchs_to_the_byte(model: str, steps: int, mesh: Any) -> None:
    (theirs, _theirs_model), (ours, _our_model) = (
        train(tracker, MODELS[model], mesh, steps) for tracker in TRACKERS.values()
    )
    assert ours.get_tracker_snapshot("current") == theirs.get_tracker_snapshot("current")
    peaks = [[tracker.get_tracker_snapshot("peak")] for tracker in (theirs, ours)]
    assert len({str(without_late_gradients(peak, after_post_backward=False)) for peak in peaks}) == 1
    expected, found = by_module(theirs), by_module(ours)
    assert list(found) == list(expected)
    for name in expected:
        assert_equal_states(snapshots_of(expected[name]), snapshots_of(found[name]))


def assert_equal_states(theirs: Snapshots, ours: Snapshots) -> None:
    assert list(ours) == list(theirs)
    for state, snapshots in theirs.items():
        late = state == "After Post-Backward"
        expected = without_late_gradients(snapshots, after_post_backward=late)
        assert without_late_gradients(ours[state], after_post_backward=late) == expected, state
        if "Backward" not in state and not state.endswith("AC"):
            assert ours[state] == snapshots


def test_torchs_peak_of_a_backward_has_what_the_next_module_gathers(mesh: Any) -> None:
    rows = {}
    for name, tracker_class in TRACKERS.items():
        tracker, model = train(tracker_class, sharded_side_by_side, mesh)
        snapshots = snapshots_of(by_module(tracker)["FSDPCheckpointed.second"])
        rows[name] = [cpu(snapshots[state][0]) for state in ("Peak Backward", "After Post-Backward")]
    next_module = sum(p.numel() * 4 for p in model.first.parameters())
    peak, over = rows["torch"]
    # Its gradients had been reduced and its parameters given back: it was over.
    assert peak["Sharded Grad"] == over["Sharded Grad"] > 0
    assert peak["Unsharded Param"] - over["Unsharded Param"] == next_module
    assert rows["memexport"][0]["Sharded Grad"] == 0


def test_torch_keeps_a_gradient_alive_while_it_looks_at_it(mesh: Any) -> None:
    totals = {}
    for name, tracker_class in TRACKERS.items():
        tracker, _model = train(tracker_class, sharded_mlp, mesh)
        (after,) = snapshots_of(by_module(tracker)["FSDPSequential.3"])["After Post-Backward"]
        totals[name] = cpu(after)["Total"]
    bias = 8 * 4  # the last gradient of the group: it had been reduced and given up
    assert totals["torch"] - totals["memexport"] == bias


def test_torch_calls_whole_gradients_temporaries_until_the_module_is_done(mesh: Any) -> None:
    seen = {}
    for name, tracker_class in TRACKERS.items():
        model = sharded_mlp(mesh)
        tracker = tracker_class(model)
        found: list[dict[str, int]] = []
        with tracker:
            # By then the engine has put the gradients of the last layer into .grad.
            model[3].register_full_backward_hook(
                lambda *_, found=found, tracker=tracker: found.append(cpu(tracker.get_tracker_snapshot()))
            )
            model(torch.randn(4, 16)).sum().backward()
        seen[name] = found[0]["Unsharded Grad"]
    assert seen == {"torch": 0, "memexport": (32 * 8 + 8) * 4}


def test_only_sharded_models_are_tracked() -> None:
    with pytest.raises(AssertionError, match="FSDP"):
        compat.FSDPMemTracker(nn.Linear(4, 4))


def test_external_tensors_are_not_its_business(mesh: Any) -> None:
    tracker = compat.FSDPMemTracker(sharded_mlp(mesh))
    tracker.track_external(torch.ones(4))
    assert tracker.get_tracker_snapshot() == {}


def test_fsdp_is_as_before_afterwards(mesh: Any) -> None:
    model = sharded_mlp(mesh)

    def hooks() -> list[Any]:
        state = model[0]._get_fsdp_state()
        group = state._fsdp_param_group
        own = [hook for m in model.modules() for hook in (*m._forward_pre_hooks, *m._forward_hooks)]
        return [own, [name for name in ("pre_backward", "post_backward") if name in vars(group)]]

    before = hooks()
    with compat.FSDPMemTracker(model):
        model(torch.randn(4, 16)).sum().backward()
        assert hooks() != before
    assert hooks() == before
