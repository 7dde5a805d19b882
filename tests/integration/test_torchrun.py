"""`torchrun` starts the ranks of a run, each under `memexport run`: a file of each, and what they come to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import memexport
from memexport import Tracker

SCRIPT = """
import os
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8))
wrapped = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
# One rank has more to do than the other.
rows = 64 + 1024 * (dist.get_rank() == 1)
for _ in range(2):
    wrapped(torch.ones(rows, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def memexport_cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in the folder; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "memexport", *arguments], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of `memexport run` in the folder."""
    (folder / "train.py").write_text(SCRIPT)
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "memexport", "run"]
    return subprocess.run(
        [sys.executable, "-m", *command, *arguments, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def written(folder: Path) -> list[str]:
    """The archives there."""
    return sorted(path.name for path in folder.glob("*.memx"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recordings of two ranks."""
    folder = tmp_path_factory.mktemp("torchrun")
    done = torchrun(folder, "-o", "run-{rank}.memx")
    assert done.returncode == 0, done.stderr
    assert "would write to" not in done.stderr
    return folder


def test_each_rank_writes_its_own_file_and_says_which_rank_it_is(run: Path) -> None:
    assert written(run) == ["run-0.memx", "run-1.memx"]
    for rank, name in enumerate(written(run)):
        with memexport.open(run / name) as recording:
            info = recording.info
        assert (info.rank, info.local_rank, info.world_size) == (rank, rank, 2)


def test_the_ranks_merge_into_one_trace_and_one_summary(run: Path) -> None:
    memexport_cli(run, "convert", *written(run), "-o", "all.pftrace", "--force")
    assert (run / "all.pftrace").stat().st_size > 0
    summary = json.loads(memexport_cli(run, "summary", "--merge", "--json", *written(run)).stdout)
    assert list(summary["devices"]) == ["rank 0 cpu", "rank 1 cpu"]
    assert summary["steps"] == 2
    assert not [warning for warning in summary["warnings"] if "missing" in warning]


def test_one_name_for_two_ranks_gets_the_rank_and_one_of_them_says_so(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "-o", "run.memx")
    assert done.returncode == 0, done.stderr
    assert written(tmp_path) == ["run-0.memx", "run-1.memx"]
    assert done.stderr.count("2 processes would write to 'run.memx'") == 1
    refused = torchrun(tmp_path, "-o", "run.memx")
    assert refused.returncode != 0
    assert "run-1.memx: exists already" in refused.stderr or "run-0.memx: exists already" in refused.stderr


def test_a_tracker_names_its_files_after_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with Tracker(exporters=["run-{rank}.memx", Path("own.memx"), "run-0.jsonl"]):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own-00.memx", "run-0.jsonl", "run-00.memx"]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "16 processes would write to 'own.memx'"
    ]


def test_a_simulated_rank_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with Tracker(exporters=["run.memx"], fake=True, world_size=8):
        pass
    assert written(tmp_path) == ["run.memx"]


def test_a_placeholder_that_is_not_known_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(memexport.UsageError, match="placeholder"):
        Tracker(exporters=["run-{world}.memx"])
    (tmp_path / "train.py").write_text("print('ran')")
    done = subprocess.run(
        [sys.executable, "-m", "memexport", "run", "-o", "{gpu}.memx", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "{local_rank}" in done.stderr


def test_the_name_that_a_run_has_without_o_has_the_rank_where_there_are_several(tmp_path: Path) -> None:
    (tmp_path / "a{b}.py").write_text("import torch\ntorch.ones(3)\n")
    common = [sys.executable, "-m", "memexport", "run", "a{b}.py"]
    ranks = {"RANK": "3", "WORLD_SIZE": "16"}
    for extra in ({}, ranks):
        subprocess.run(common, cwd=tmp_path, env={**os.environ, **extra}, check=True, capture_output=True)
    own, alone = sorted(written(tmp_path), key=lambda name: "-03." not in name)
    assert own.startswith("memexport-a{b}-03.")
    assert alone.startswith("memexport-a{b}.")
