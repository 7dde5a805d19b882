"""One rank of a job of many, simulated alone."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import memexport
from memexport.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH, LAYERS = 256, 4


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


def simulated(device: str, world_size: int, work: Any) -> tuple[Any, memexport.Tracker]:
    with memexport.Tracker(fake=True, device=device, world_size=world_size) as tracker:
        dist.init_process_group("nccl")
        try:
            result = work(device)
        finally:
            dist.destroy_process_group()
    return result, tracker


def sharded(device: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, device=device) for _ in range(LAYERS)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = sharded(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, WIDTH, device=device)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def state_bytes(device: str, world_size: int) -> int:
    """What AdamW keeps on the first of these ranks, without its counters of steps."""
    (model, optimizer), tracker = simulated(device, world_size, train)
    local = sum(parameter.to_local().numel() for parameter in model.parameters())
    assert local == LAYERS * (WIDTH * WIDTH + WIDTH) // world_size
    usage = tracker.usage()["cpu" if device == "cpu" else "cuda:0"]
    assert len(optimizer.state) == 2 * LAYERS
    return usage["optimizer_state"] - (4 * 2 * LAYERS if device == "cpu" else 0)


@pytest.mark.parametrize("world_size", [1, 8, 64])
def test_a_sharded_model_takes_its_share(device: str, world_size: int) -> None:
    assert state_bytes(device, world_size) == 2 * 4 * LAYERS * (WIDTH * WIDTH + WIDTH) // world_size


def test_data_parallel_models_train(device: str) -> None:
    def work(device: str) -> Any:
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8, device=device))
        model(torch.randn(3, 8, device=device)).sum().backward()
        return model.module.weight.grad.device.type

    assert simulated(device, 4, work)[0] == device


def test_collectives_return_at_once(device: str) -> None:
    def work(device: str) -> list[Any]:
        x = torch.ones(4, device=device)
        gathered = [torch.empty_like(x) for _ in range(16)]
        dist.all_reduce(x)
        dist.all_gather(gathered, x)
        dist.barrier()
        objects: list[Any] = [None] * 16
        dist.all_gather_object(objects, "rank 0")
        dist.broadcast_object_list(objects)
        group = dist.new_group(range(8), backend="gloo")
        return [dist.get_world_size(), dist.get_world_size(group), objects[15]]

    assert simulated(device, 16, work)[0] == [16, 8, "rank 0"]


def test_the_environment_is_a_launchers_and_the_recording_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    with memexport.Tracker(fake=True, device="cuda", world_size=64) as tracker:
        assert [os.environ[name] for name in names] == ["0", "0", "64", "8"]
        assert torch.cuda.device_count() == 8
    assert os.environ["RANK"] == "7"
    assert "WORLD_SIZE" not in os.environ
    info = tracker._recording()._info
    assert (info.rank, info.local_rank, info.world_size) == (0, 0, 64)


def test_a_torch_without_torch_distributed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"no torch\.distributed"):
        memexport.Tracker(fake=True, world_size=2).start()
    assert type(torch.ones(1)) is torch.Tensor
