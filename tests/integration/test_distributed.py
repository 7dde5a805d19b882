"""Four real processes that train together over gloo, each under a tracker; their recordings merged."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from memexport import pipeline

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
import memexport

def nbytes(tensors):
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors if t is not None]
    return sum({s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in local)}.values())

sharded = sys.argv[1] == "fsdp"
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
if sharded:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
wrapped = model if sharded else nn.parallel.DistributedDataParallel(model)
kind = "sharded_" if sharded else ""
with memexport.Tracker(model, optimizer=optimizer, exporters=[f"run-{os.environ['RANK']}.memx"]) as tracker:
    for _ in range(3):
        wrapped(torch.full((4, 64), float(dist.get_rank()))).sum().backward()
        usage = tracker.usage()["cpu"]
        assert sum(size for name, size in usage.items() if name != "total") == usage["total"]
        gradients = nbytes(p.grad for p in model.parameters())
        # What DDP gathers gradients in is made of gradients too.
        assert usage[kind + "gradient"] in ((gradients,) if sharded else (gradients, 2 * gradients)), usage
        optimizer.step()
        states = nbytes(v for s in optimizer.state.values() for v in s.values() if v is not None)
        usage = tracker.usage()["cpu"]
        assert usage["optimizer_state"] == states, (usage, states)
        assert usage[kind + "parameter"] == nbytes(model.parameters()), usage
        optimizer.zero_grad()
        tracker.step()
dist.destroy_process_group()
"""


RANKS = 4
LARGEST_LAYER_BYTES = (64 * 128 + 128) * 4


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_each_rank_knows_its_own_memory_and_the_ranks_merge(how: str, tmp_path: Path) -> None:
    """The assertions of the script hold in each process: against the tensors that it holds."""
    (tmp_path / "train.py").write_text(SCRIPT)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", how],
            cwd=tmp_path,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [process.communicate(timeout=180)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * RANKS, "\n".join(said)
    with pipeline.merge([tmp_path / f"run-{rank}.memx" for rank in reversed(range(RANKS))]) as merged:
        summary = merged.summary()
    assert list(summary.devices) == [f"rank {rank} cpu" for rank in range(RANKS)]
    peaks = [device.allocated.peak for device in summary.devices.values() if device.allocated]
    # gloo's thread lets go of what it gathered when it gets to it: one layer more may live at a rank's peak.
    assert min(peaks) > 0
    assert max(peaks) - min(peaks) <= (LARGEST_LAYER_BYTES if how == "fsdp" else 0)
    assert summary.steps == 3
    assert not any("missing" in warning for warning in summary.warnings)
