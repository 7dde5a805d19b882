"""A Slurm cluster of one node, this machine: its daemons run until it is closed."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
_SECONDS = 60


class SlurmCluster:
    """Runs jobs of several tasks; needs root, as slurmd does.

    Attributes:
        environment: what its clients need.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        (folder / "slurm.conf").write_text(self._configuration())
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}

    def start(self) -> None:
        """Start the daemons, and wait until the node takes jobs."""
        (self._folder / "key").write_bytes(os.urandom(1024))
        (self._folder / "key").chmod(0o600)
        names = (
            "key-file=key",
            "socket=munge",
            "pid-file=munged.pid",
            "log-file=munged.log",
            "seed-file=seed",
        )
        options = [f"--{name.replace('=', f'={self._folder}/')}" for name in names]
        self._daemon("munged", "--foreground", "--force", *options)
        self._wait(lambda: (self._folder / "munge").exists())
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D", "-N", _host())
        self._wait(lambda: "idle" in self.run("sinfo", "--noheader").stdout)

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A client of the cluster, to its end."""
        return subprocess.run(
            command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=4 * _SECONDS
        )

    def close(self) -> None:
        """End the daemons."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait(_SECONDS)

    def _daemon(self, *command: str) -> None:
        log = (self._folder / f"{command[0]}.out").open("wb")
        self._daemons.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def _wait(self, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not is_there():
            assert time.monotonic() < deadline, self._logs()
            assert all(daemon.poll() is None for daemon in self._daemons), self._logs()
            time.sleep(0.2)

    def _logs(self) -> str:
        return "\n".join(path.read_text() for path in self._folder.glob("*.out"))

    def _configuration(self) -> str:
        """Without what needs control groups, systemd or a database."""
        for name in ("state", "spool"):
            (self._folder / name).mkdir()
        return f"""
ClusterName=test
SlurmctldHost={_host()}(127.0.0.1)
SlurmctldPort={_free_port()}
SlurmdPort={_free_port()}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={self._folder}/munge
StateSaveLocation={self._folder}/state
SlurmdSpoolDir={self._folder}/spool
SlurmctldPidFile={self._folder}/slurmctld.pid
SlurmdPidFile={self._folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={_host()} NodeAddr=127.0.0.1 CPUs=1
PartitionName=all Nodes=ALL Default=YES
"""


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
