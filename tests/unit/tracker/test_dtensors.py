"""Of a DTensor's operators, those on this process' part are recorded. The other process is pretended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from bench.exact_models import allocator_peak
from recorded import CollectingExporter, operators, since_start
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import memexport


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def test_collectives_and_the_operators_on_the_local_part_are_seen(mesh: DeviceMesh) -> None:
    left, right = (distribute_tensor(torch.randn(256, 256), mesh, [Shard(0)]) for _ in range(2))

    def work() -> None:
        (left @ right + right.redistribute(mesh, [Replicate()])).sum()

    work()  # its shapes are worked out once
    truth = allocator_peak(work)
    exporter = CollectingExporter()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        work()
    allocated = tracker.summary().devices["cpu"].allocated
    assert allocated is not None
    assert abs(allocated.peak - allocated.start - truth) <= truth // 100
    ran = [event.name for event in operators(since_start(exporter.events()))]
    assert ran.count("aten.mm.default") == 1
    assert ran.count("_c10d_functional.all_gather_into_tensor.default") == 2
    assert ran.count("_c10d_functional.wait_tensor.default") == 2


def test_what_works_out_shapes_is_not_recorded(mesh: DeviceMesh) -> None:
    exporters = [CollectingExporter(), CollectingExporter()]
    for exporter in exporters:  # the second time, DTensor remembers
        tensors = [distribute_tensor(torch.ones(64, 60), mesh, [Shard(0)]) for _ in range(2)]
        with memexport.Tracker(exporters=[exporter]):
            torch.add(*tensors)
    first, second = (
        [(e.name, e.size_bytes) for e in operators(since_start(exporter.events()))] for exporter in exporters
    )
    assert first == second == [("aten.add.Tensor", 32 * 60 * 4)]


def test_a_model_in_parts_trains_as_without_a_tracker(mesh: DeviceMesh) -> None:
    def gradients(*, tracked: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        model = parallelize_module(model, mesh, plan)
        tracker = memexport.Tracker(model)
        if tracked:
            tracker.start()
        model(torch.ones(4, 64)).sum().backward()
        tracker.stop()
        return [p.grad.to_local() for p in model.parameters() if p.grad is not None]

    for found, expected in zip(gradients(tracked=True), gradients(tracked=False), strict=True):
        assert torch.equal(found, expected)
