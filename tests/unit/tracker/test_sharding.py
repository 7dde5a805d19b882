"""FSDP2 on one process: the fake process group does the bookkeeping of many, and sends nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded import CollectingExporter
from test_categories import held_after
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import memexport
from memexport.model import Category, EventKind


class Block(nn.Module):
    """Two linear layers and a residual."""

    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x))

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


@pytest.fixture(params=[2, 8])
def world_size(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group of so many, of which only this process is there."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield request.param
    dist.destroy_process_group()


def sharded_model(world_size: int, *, recompute: bool = False, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world_size,))
    model = nn.Sequential(Block(recompute), Block(recompute), nn.Linear(64, 8))
    for block in list(model)[:2]:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def kept(tensors: Iterator[torch.Tensor | None]) -> int:
    """Bytes of the local parts of sharded tensors."""
    parts = [t.to_local().untyped_storage() for t in tensors if isinstance(t, DTensor)]
    return sum({part.data_ptr(): part.nbytes() for part in parts}.values())


OPTIONS = [
    pytest.param(reshard, half, recompute, id=f"reshard={reshard}-half={half}-recompute={recompute}")
    for reshard, half, recompute in itertools.product([False, True], repeat=3)
]


@pytest.mark.parametrize(("reshard", "half", "recompute"), OPTIONS)
def test_what_a_process_keeps_and_gathers_is_told_apart(
    world_size: int, reshard: bool, half: bool, recompute: bool
) -> None:
    """Against the tensors themselves, at the moments at which it is known what there must be."""
    options: dict[str, Any] = {"reshard_after_forward": reshard}
    if half:
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    model = sharded_model(world_size, recompute=recompute, **options)
    optimizer = torch.optim.Adam(model.parameters())
    exporter = CollectingExporter()
    truth: dict[str, dict[Category, int]] = {}

    def note(moment: str) -> None:
        tracker.mark(moment)
        truth[moment] = {
            Category.SHARDED_PARAMETER: kept(iter(model.parameters())),
            Category.SHARDED_GRADIENT: kept(p.grad for p in model.parameters()),
            Category.OPTIMIZER_STATE: kept(
                value for state in optimizer.state.values() for value in state.values()
            ),
            Category.UNSHARDED_GRADIENT: 0,
        }

    with memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]) as tracker:
        for step in range(2):
            model(torch.ones(4, 64)).sum().backward()
            note(f"backward {step}")
            optimizer.step()
            optimizer.zero_grad()
            note(f"step {step}")
    events = exporter.events()
    after = held_after(events)
    steps_alone = 4 * 2 * sum(1 for _ in model.parameters()) if optimizer.state else 0
    for event, sums in zip(events, after, strict=True):
        if event.name in truth:
            found = {category: sums[category] for category in truth[event.name]}
            # Adam counts its steps in a plain tensor for each parameter.
            extra = found[Category.OPTIMIZER_STATE] - truth[event.name][Category.OPTIMIZER_STATE]
            assert 0 <= extra <= steps_alone
            found[Category.OPTIMIZER_STATE] -= extra
            assert found == truth[event.name]
    assert_sums(events)
    whole = 4 * sum(p.numel() for p in model[0].parameters()) // (2 if half else 1)
    most = max(sums[Category.UNSHARDED_PARAMETER] for sums in after)
    assert whole <= most < 4 * whole
    assert max(sums[Category.UNSHARDED_GRADIENT] for sums in after) >= whole
    assert max(sums[Category.ALL_GATHER] for sums in after) >= whole
    assert max(sums[Category.REDUCE_SCATTER] for sums in after) >= whole


def assert_sums(events: list[SimpleNamespace]) -> None:
    for event, sums in zip(events, held_after(events), strict=True):
        if event.name != "peak" and event.kind is not EventKind.SAMPLE:
            assert event.allocated_bytes in (-1, sums.total())


def test_whole_parameters_are_given_back_after_forward_only_where_they_are_to_be(world_size: int) -> None:
    """Their storages live on without memory; `resize_` of a storage is no operator."""
    held = {}
    for reshard in (True, False):
        model = sharded_model(world_size, reshard_after_forward=reshard)
        exporter = CollectingExporter()
        with memexport.Tracker(model, exporters=[exporter]) as tracker:
            for _ in range(2):
                result = model(torch.ones(4, 64))
                tracker.mark("forward is over")
                result.sum().backward()
            tracker.mark("backward is over")
        events = exporter.events()
        after = zip(events, held_after(events), strict=True)
        held[reshard] = {
            e.name: s[Category.UNSHARDED_PARAMETER] for e, s in after if e.kind is EventKind.MARKER
        }
    whole = 4 * sum(p.numel() for p in model.parameters())
    gathered = {reshard: moments["forward is over"] for reshard, moments in held.items()}
    assert gathered == {False: whole, True: 0}
    assert [moments["backward is over"] for moments in held.values()] == [0, 0]


def test_offloading_to_the_cpu_changes_nothing_else(world_size: int) -> None:
    """There is only the CPU here: its parameters stay where they are."""
    model = sharded_model(world_size, offload_policy=CPUOffloadPolicy(pin_memory=False))
    exporter = CollectingExporter()
    with memexport.Tracker(model, exporters=[exporter]):
        model(torch.ones(4, 64)).sum().backward()
    assert_sums(exporter.events())


def test_torchs_own_function_is_back_afterwards() -> None:
    """Also when something else has put its own in place meanwhile."""
    before = torch.UntypedStorage.resize_
    with memexport.Tracker():
        assert torch.UntypedStorage.resize_ is not before
        torch.UntypedStorage(4).resize_(8)
    assert torch.UntypedStorage.resize_ is before
    assert "resize_" not in vars(torch.UntypedStorage)


def test_a_resized_storage_is_released_and_allocated(tmp_path: Any) -> None:
    """Without any operator."""
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        tensor = torch.zeros(100)
        tensor.untyped_storage().resize_(0)
        tracker.mark("empty")
        tensor.untyped_storage().resize_(800)
        tracker.mark("large")
        del tensor
        tracker.mark("gone")
    events = exporter.events()
    start = next(e for e in events if e.name == "start").allocated_bytes
    marks = {e.name: s.total() for e, s in zip(events, held_after(events), strict=True)}
    before = max(start, 0) or marks["gone"]
    assert [marks[name] - before for name in ("empty", "large", "gone")] == [0, 800, 0]
