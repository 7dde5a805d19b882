"""Names and ranks of what a real Slurm, Open MPI or MPICH has started, where these are installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import PROGRAMS, SlurmCluster

import memexport

TRAIN = "import torch\ntorch.nn.Linear(8, 8)(torch.ones(2, 8)).sum().backward()\n"
RUN = [sys.executable, "-m", "memexport", "run", "-o"]
OUTPUTS = ["run-{rank}.memx", "run-{local_rank}.memx", "run.memx"]
TASKS = 4
MPI = {
    "Open MPI": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
    "MPICH": ["mpiexec.hydra"],
}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of its own, if Slurm is installed."""
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        pytest.skip("needs slurm-wlm and munge, and to be root")
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script in it."""
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def recorded(folder: Path) -> dict[str, tuple[int | None, int | None, int | None]]:
    """The rank, local rank and world size that each recording there says; all on this host."""
    found = {}
    for path in sorted(folder.glob("*.memx")):
        with memexport.open(path) as recording:
            info = recording.info
            assert info.host == socket.gethostname()
            assert recording.summary().operators > 0
        found[path.name] = (info.rank, info.local_rank, info.world_size)
    return found


def ranks_of(name: str) -> dict[str, tuple[int, int, int]]:
    """What `recorded` gives for all tasks, with this name."""
    return {name.format(rank): (rank, rank, TASKS) for rank in range(TASKS)}


@pytest.mark.parametrize("pmi", ["none", "pmi2"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_each_task_of_srun_writes_its_own_file(
    slurm: SlurmCluster, folder: Path, output: str, pmi: str
) -> None:
    tasks = ["srun", "-n", str(TASKS), "--overcommit", f"--mpi={pmi}"]
    done = slurm.run(*tasks, *RUN, output, "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert recorded(folder) == ranks_of("run-{}.memx")
    assert done.stderr.count("processes would write to") == (output == "run.memx")


def test_what_a_batch_script_starts_itself_is_one_process(slurm: SlurmCluster, folder: Path) -> None:
    run = " ".join(RUN)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {TASKS}"
    script = f"""#!/bin/bash
#SBATCH -n {TASKS} --overcommit -o job.out
{run} alone.memx train.py
{torchrun} -m memexport run -o torch.memx train.py
srun --overcommit {run} srun.memx train.py
"""
    (folder / "job.sh").write_text(script)
    done = slurm.run("sbatch", "--wait", "job.sh", cwd=folder)
    assert done.returncode == 0, done.stderr + (folder / "job.out").read_text()
    alone = {"alone.memx": (None, None, None)}
    assert recorded(folder) == alone | ranks_of("torch-{}.memx") | ranks_of("srun-{}.memx")


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("launcher", MPI)
def test_each_process_of_mpi_writes_its_own_file(folder: Path, launcher: str, output: str) -> None:
    command = MPI[launcher]
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {launcher}")
    done = subprocess.run(
        [*command, "-n", str(TASKS), *RUN, output, "train.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert recorded(folder) == ranks_of("run-{}.memx")
