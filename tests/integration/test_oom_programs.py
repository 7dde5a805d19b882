"""Programs that run out of memory, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import memexport

TRAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NOTE = "memexport: out of memory"


def run(
    code: str, folder: Path, *before: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The code as a program in this folder; `before`: what stands between python and the script."""
    (folder / "train.py").write_text(code)
    return subprocess.run(
        [sys.executable, *before, "train.py"],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


def under_run(
    code: str, folder: Path, *options: str, **more: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return run(code, folder, "-m", "memexport", "run", *options, **more)


def recordings(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/*.memx"))


@pytest.mark.parametrize("how", ["option", "environment"])
def test_run_shows_pythons_traceback_and_the_note_and_writes_nothing_else(how: str, tmp_path: Path) -> None:
    code = TRAIN + "def deep():\n    torch.empty(1 << 50)\ndeep()\n"
    plain = run(code, tmp_path)
    options = ("--oom", "oom") if how == "option" else ()
    done = under_run(code, tmp_path, *options, environment={"MEMEXPORT_OOM": "oom"} if not options else {})
    assert done.returncode == plain.returncode == 1
    without_frame = plain.stderr.splitlines()
    assert [line for line in without_frame if line not in done.stderr.splitlines()] == []
    error, _, note = done.stderr.partition(NOTE)
    assert error.splitlines()[-1] == without_frame[-1]
    assert len(note.splitlines()) <= 12
    (path,) = recordings(tmp_path)
    assert path.parent == tmp_path / "oom"
    assert f"memexport summary oom/{path.name}" in note
    with memexport.open(path) as recording:
        summary = recording.summary()
        assert summary.steps == 4
        (request,) = summary.devices["cpu"].failed_requests
    assert request.bytes == 1 << 52
    assert [frame.rpartition("/")[2] for frame in request.stack or ()] == [
        "train.py:12:<module>",
        "train.py:11:deep",
    ]


def test_a_run_in_which_nothing_fails_leaves_no_file(tmp_path: Path) -> None:
    done = under_run(TRAIN, tmp_path, "--oom", "oom")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_wrong_place_is_said_before_the_program_runs(tmp_path: Path) -> None:
    done = under_run("print('ran')\n", tmp_path, "--oom", "{nonsense}")
    assert done.returncode == 2
    assert done.stdout == ""
    done = under_run("print('ran')\n", tmp_path, "--fake", "--oom", "oom")
    assert done.returncode == 2
    assert "--oom" in done.stderr


LIMITED = """
import resource
import torch, memexport
with memexport.Tracker(on_oom="oom"):
    kept = torch.ones(1000)
    now = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (now + (192 << 20), now + (192 << 20)))
    blocks = []
    while True:
        blocks.append(torch.ones(4 << 20))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_process_that_really_has_no_memory_left_writes_its_recording(tmp_path: Path) -> None:
    done = run(LIMITED, tmp_path)
    assert done.returncode == 1
    assert f"{NOTE} on cpu: 16.00 MiB requested" in done.stderr
    (path,) = recordings(tmp_path)
    with memexport.open(path) as recording:
        device = recording.summary().devices["cpu"]
    (request,) = device.failed_requests
    assert request.bytes == 16 << 20
    assert request.allocated_bytes is not None
    assert request.allocated_bytes % (16 << 20) == 4000
    assert request.allocated_bytes > 16 << 20


WORKER = """
import torch, memexport
from torch.utils.data import DataLoader
class Hungry(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if OWN:
            with memexport.Tracker():
                return torch.empty(1 << 50)
        return torch.empty(1 << 50)
if __name__ == "__main__":
    with memexport.Tracker(on_oom=None if OWN else "oom") as tracker:
        torch.ones(3)
        try:
            for batch in DataLoader(Hungry(), num_workers=2, multiprocessing_context="fork"):
                pass
        except RuntimeError as error:
            print(str(error))
            raise
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
@pytest.mark.parametrize("own", [False, True], ids=["tracker in the parent", "tracker in the worker"])
def test_a_worker_that_runs_out_of_memory_breaks_nothing(own: bool, tmp_path: Path) -> None:
    environment = {"MEMEXPORT_OOM": "oom"} if own else {}
    done = run(WORKER.replace("OWN", str(own)), tmp_path, environment=environment)
    assert done.returncode == 1
    assert "Caught RuntimeError in DataLoader worker process" in done.stdout
    # The parent, which had enough, has nothing to say of it; the worker's note comes with its traceback.
    assert (NOTE in done.stdout) == own
    assert bool(recordings(tmp_path)) == own


SHARDED = """
import sys, torch, memexport, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))
    def forward(self, x):
        return Hungry.apply(x @ self.weight)
class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return torch.empty(1 << 50)
model = nn.Sequential(nn.Linear(64, 64), Last())
mesh = init_device_mesh("cpu", (4,))
for part in (*model, model):
    fully_shard(part, mesh=mesh)
with memexport.Tracker(model, on_oom="oom"):
    model(torch.ones(8, 64)).sum().backward()
"""


def test_a_sharded_model_says_which_rank_and_what_was_gathered(tmp_path: Path) -> None:
    done = run(SHARDED, tmp_path)
    assert done.returncode == 1
    assert f"{NOTE} on cpu: 4.00 PiB requested" in done.stderr
    (path,) = recordings(tmp_path)
    assert path.name.startswith("oom-1-")
    with memexport.open(path) as recording:
        (request,) = recording.summary().devices["cpu"].failed_requests
    assert request.phase == "backward"
    assert request.categories["unsharded_parameter"] >= 64 * 64 * 4
    assert request.categories["sharded_parameter"] > 0


KILLED = """
import os, signal, time, torch, memexport
with memexport.Tracker(on_oom="oom", exporters=EXPORTERS, flush_interval=0.1):
    for _ in range(100):
        torch.ones(7)
    time.sleep(0.6)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_the_kernel_kills_leaves_what_an_exporter_flushed_and_a_ring_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "alone").mkdir()
    assert run(KILLED.replace("EXPORTERS", "[]"), tmp_path / "alone").returncode == -9
    assert recordings(tmp_path) == []
    assert run(KILLED.replace("EXPORTERS", "['run.memx']"), tmp_path).returncode == -9
    (path,) = recordings(tmp_path)
    with memexport.open(path) as recording:
        assert recording.summary().operators == 100
