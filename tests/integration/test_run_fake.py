"""`memexport run --fake`: a script is estimated without hardware."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memexport

SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(2000, 4000), nn.ReLU(), nn.Linear(4000, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    loss = model(torch.randn(8, 2000)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""


def run(*options: str, cwd: Path, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    (cwd / "train.py").write_text(script)
    command = [sys.executable, "-m", "memexport", "run", "-o", "run.memx", "--force", *options, "train.py"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def summary(cwd: Path) -> dict[str, Any]:
    with memexport.open(cwd / "run.memx") as recording:
        result: dict[str, Any] = recording.summary().to_dict()
    return result


def test_a_script_is_estimated_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    done = run("--fake", "--device", "cuda", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1.0\n1.0\n"), done.stderr
    device = summary(tmp_path)["devices"]["cuda:0"]
    assert device["categories_at_peak"]["parameter"] == 4 * (2000 * 4000 + 4000 + 4000 + 1)
    assert device["reserved"]["peak"] >= device["allocated"]["peak"] > 4 * 32_000_000


def test_on_the_cpu_it_says_what_the_real_run_says(tmp_path: Path) -> None:
    peaks = []
    for options in ([], ["--fake"]):
        assert run(*options, cwd=tmp_path).returncode == 0
        peaks.append(summary(tmp_path)["devices"]["cpu"]["allocated"]["peak"])
    assert peaks[0] == peaks[1]


def test_a_script_that_exceeds_the_budget_ends_with_1_and_says_where(tmp_path: Path) -> None:
    done = run("--fake", "--device", "cuda", "--budget", "90MiB", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "1.0\n1.0\n")
    sentence = "cuda:0 would run out of 90.00 MiB in aten.zeros_like.default of 0 (optimizer, step 0)"
    assert f"memexport: {sentence}" in done.stderr
    found = summary(tmp_path)
    assert "out of budget" in [marker["name"] for marker in found["markers"]]
    assert any(warning.startswith(sentence) for warning in found["warnings"])


def test_a_script_that_fits_ends_with_0(tmp_path: Path) -> None:
    done = run("--fake", "--device", "cuda", "--budget", "1GiB", cwd=tmp_path)
    assert done.returncode == 0
    assert "run out" not in done.stderr


def test_a_script_with_an_exit_code_of_its_own_keeps_it(tmp_path: Path) -> None:
    done = run("--fake", "--budget", "1MiB", cwd=tmp_path, script=SCRIPT + "raise SystemExit(7)\n")
    assert done.returncode == 7
    assert "run out of 1.00 MiB" in done.stderr


def test_the_value_of_what_is_read_can_be_chosen(tmp_path: Path) -> None:
    assert run("--fake", "--fake-value", "0.25", cwd=tmp_path).stdout == "0.25\n0.25\n"


def test_a_script_of_one_rank_of_many_runs_alone(tmp_path: Path) -> None:
    script = """
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(1024, 1024).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.randn(8, 1024, device="cuda")).sum().backward()
optimizer.step()
print(dist.get_rank(), dist.get_world_size(), model.weight.to_local().numel())
dist.destroy_process_group()
"""
    done = run("--fake", "--device", "cuda", "--world-size", "64", cwd=tmp_path, script=script)
    assert (done.returncode, done.stdout) == (0, "0 64 16384\n"), done.stderr
    with memexport.open(tmp_path / "run.memx") as recording:
        assert (recording.info.rank, recording.info.world_size) == (0, 64)


@pytest.mark.parametrize("option", [["--device", "cuda"], ["--budget", "1GiB"], ["--world-size", "2"]])
def test_what_needs_a_simulation_is_wrong_usage_without(tmp_path: Path, option: list[str]) -> None:
    done = run(*option, cwd=tmp_path)
    assert done.returncode == 2
    assert "--fake" in done.stderr
    assert not (tmp_path / "run.memx").exists()
