"""Which process of a run this one is, as its launcher says, and what its files are called after that.

Only the environment is asked: no process waits for another. torch.distributed need not be there.
"""

from __future__ import annotations

import os
import re
import socket
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from memexport import registry, remote
from memexport.errors import UsageError


class _Variables(NamedTuple):
    """What a launcher calls them; of several names, the first that is set counts.

    Attributes:
        only_with: without this one, the others say nothing of this process.
    """

    rank: str
    local_rank: tuple[str, ...]
    world_size: str
    only_with: str


# The first launcher whose rank is set is asked for all three. Slurm comes last: what mpirun or torchrun start
# in a job of Slurm has Slurm's variables too, those of the one process that started them all.
# https://docs.pytorch.org/docs/stable/elastic/run.html
# https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html
# https://slurm.schedmd.com/srun.html (srun --mpi=pmi2 sets PMI_RANK, but no local rank of PMI's)
# A script of sbatch is one process, and has the rank 0 and the number of tasks that srun would start; only
# what srun started belongs to a step.
_LAUNCHERS: Final = (
    _Variables("RANK", ("LOCAL_RANK",), "WORLD_SIZE", "RANK"),
    _Variables(
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
    ),
    _Variables("PMI_RANK", ("MPI_LOCALRANKID", "SLURM_LOCALID"), "PMI_SIZE", "PMI_RANK"),
    _Variables("SLURM_PROCID", ("SLURM_LOCALID",), "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS"),
)

PLACEHOLDERS: Final = ("rank", "local_rank", "host", "pid")
"""What may stand in braces in a name."""

_TELL_APART: Final = frozenset({"local_rank", "pid"})
"""Those of which no two processes of a host have the same; on another host there may be one that has."""

# The number of a rank stands by itself or behind "rank": "run-3", "rank3"; but "v3" is a version.
_RANK_IN_NAME: Final = re.compile(r"(?:(?<![0-9A-Za-z])|(?<![A-Za-z])r(?:ank)?)([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Process:
    """One process of a run. `rank`, `local_rank` and `world_size` are None where no launcher says them."""

    host: str
    pid: int
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None

    @property
    def has_others(self) -> bool:
        """Whether further processes run the same command."""
        return (self.world_size or 1) > 1


def this_process(environment: Mapping[str, str] = os.environ) -> Process:
    """What the environment says now: of torchrun, Open MPI, MPICH or Slurm, in this order."""
    said = next((names for names in _LAUNCHERS if _speaks(names, environment)), None)
    if said is None:
        # Some set a world of one, and no rank.
        world_size = _integer(environment.get("WORLD_SIZE"))
        local_rank = _integer(environment.get("LOCAL_RANK"))
        return Process(socket.gethostname(), os.getpid(), None, local_rank, world_size)
    local_ranks = [_integer(environment.get(name)) for name in said.local_rank]
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        rank=_integer(environment.get(said.rank)),
        local_rank=next((rank for rank in local_ranks if rank is not None), None),
        world_size=_integer(environment.get(said.world_size)),
    )


def filled(name: str, process: Process) -> str:
    """The name with each placeholder replaced by what is true for the process.

    `{rank}` has as many digits in every process of the run, so that names sort as ranks do; it is 0 without a
    rank, like `{local_rank}`. `{{` and `}}` stand for braces.

    Raises:
        UsageError: another placeholder, or a brace without its partner.
    """
    values = _values(process)
    return "".join(text if key is None else text + values[key] for text, key in _pieces(name))


def filled_for_one(name: str, process: Process) -> tuple[str, str | None]:
    """The name as `filled`, so that no two processes of a run have the same.

    In a process that has others, one whose placeholders do not tell it from them gets its rank before its
    suffix, unless the last number in it is that rank already. `{local_rank}` and `{pid}` tell the processes
    of a host apart; behind a URL, where the files of all hosts are, only together with `{host}`.

    Returns:
        The name, and, of the run's first process, a sentence if it had to be changed.

    Raises:
        UsageError: as `filled`.
    """
    is_own = _is_own(name, process)
    plain, rank = filled(name, process), process.rank or 0
    if is_own or not process.has_others or _names_rank(plain, rank):
        return plain, None
    own = _with_rank(plain, process)
    several = f"{process.world_size} processes would write to {plain!r}"
    return own, None if rank else f"{several}: each writes its own, this one {own!r}; {{rank}} says where"


def escaped(text: str) -> str:
    """The text as a name that `filled` gives back."""
    return text.replace("{", "{{").replace("}", "}}")


def _is_own(name: str, process: Process) -> bool:
    """Whether the placeholders in it tell this process from all others of the run."""
    keys = {key for _, key in _pieces(name)}
    of_host = keys & _TELL_APART
    if process.local_rank is None:
        of_host = of_host - {"local_rank"}
    return "rank" in keys or (bool(of_host) and ("host" in keys or not remote.is_url(name)))


def _with_rank(name: str, process: Process) -> str:
    """The name with "-RANK" before its suffix."""
    suffixes = [suffix for format_ in registry.exporters() for suffix in format_.suffixes]
    length = max((len(suffix) for suffix in suffixes if name.lower().endswith(suffix)), default=0)
    stem = name[: len(name) - length]
    return f"{stem}-{_values(process)['rank']}{name[len(stem) :]}"


def _values(process: Process) -> dict[str, str]:
    width = len(str(max(0, (process.world_size or 1) - 1)))
    return {
        "rank": f"{process.rank or 0:0{width}}",
        "local_rank": str(process.local_rank or 0),
        "host": process.host,
        "pid": str(process.pid),
    }


def _pieces(name: str) -> list[tuple[str, str | None]]:
    """Text, and the placeholder that follows it; the last has none."""
    hint = f"{', '.join('{' + known + '}' for known in PLACEHOLDERS)}; {{{{ and }}}} are braces"
    try:
        parsed = list(string.Formatter().parse(name))
    except ValueError as error:
        raise UsageError(f"the braces in {name!r} do not match", hint=hint) from error
    for _, key, format_, conversion in parsed:
        if key is not None and (key not in PLACEHOLDERS or format_ or conversion):
            raise UsageError(f"{name!r} has a placeholder that is not known", hint=hint)
    return [(text, key) for text, key, _, _ in parsed]


def _names_rank(name: str, rank: int) -> bool:
    """Whether the last number in the file's name is the rank: then no other rank has that name."""
    numbers = re.findall(r"[0-9]+", _split(name)[1])
    ranks = _RANK_IN_NAME.findall(_split(name)[1])
    return bool(ranks) and ranks[-1] == numbers[-1] and int(ranks[-1]) == rank


def _split(name: str) -> tuple[str, str]:
    """What comes before the last part of a path or URL, and that part."""
    cut = max(name.rfind("/"), name.rfind(os.sep)) + 1
    return name[:cut], name[cut:]


def _speaks(names: _Variables, environment: Mapping[str, str]) -> bool:
    """Whether this launcher says of this process which one it is."""
    return _integer(environment.get(names.rank)) is not None and names.only_with in environment


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
