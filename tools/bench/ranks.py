"""What recording costs per operator where processes train together, beside one that does so alone.

    python tools/bench/ranks.py [--ranks 4] [--rounds 9] [--steps 10]

The small transformer of `rounds.py` as it is, under DistributedDataParallel and under FSDP2 (gloo, on the
CPU), in one process and in several at once. What is measured is CPU time of the training thread, which also
runs backward: processes that share cores wait for each other, and waiting is none of the recording's. What
they still share is caches, so any code takes more CPU time in several; an empty `TorchDispatchMode` in the
same process says how much, and the last column compares what memexport adds in terms of that.

Each process writes a .memx file of its own. A figure is the median over the rounds, then over the processes.
Operators are those that memexport records: of a DTensor's, the ones on the local part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from rounds import EmptyMode, Tools, Training
from torch import multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import memexport

TARGET: Final = "≤ 1.1"
"""Of the last column: beside one process of the same kind, both in terms of an empty mode."""


def alone(model: nn.Module) -> nn.Module:
    """As it is."""
    return model


def ddp(model: nn.Module) -> nn.Module:
    """Gradients are reduced by buckets."""
    return nn.parallel.DistributedDataParallel(model)


def fsdp2(model: Any) -> nn.Module:
    """Parameters are sharded by block."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


KINDS: Final[dict[str, Callable[[Any], nn.Module]]] = {"alone": alone, "DDP": ddp, "FSDP2": fsdp2}


@dataclass(frozen=True)
class Run:
    """Some processes that train together.

    Attributes:
        kind: of `KINDS`.
        ranks: how many processes.
        rounds, steps: of a measurement.
        folder: where they meet, and leave what they found.
    """

    kind: str
    ranks: int
    rounds: int
    steps: int
    folder: str


def work(rank: int, run: Run) -> None:
    """What one process does: measure, and write down what each tool adds to an operator, in µs."""
    store = f"file://{run.folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=run.ranks)
    training = Training(KINDS[run.kind], clock=time.thread_time)
    archive = Path(run.folder) / f"{rank}.memx"
    tools: Tools = {
        "empty": EmptyMode,
        "memexport": lambda: memexport.Tracker(
            training.model, optimizer=training.optimizer, exporters=[archive]
        ),
    }
    costs = training.costs(tools, rounds=run.rounds, steps=run.steps)
    with memexport.Tracker(training.model, optimizer=training.optimizer) as tracker:
        training.step()
    operators = tracker.summary().operators
    found = {name: added * costs.operators / operators for name, added in costs.added_us.items()}
    (Path(run.folder) / f"{rank}.json").write_text(json.dumps(found | {"operators": operators}))
    dist.destroy_process_group()


def measured(kind: str, ranks: int, *, rounds: int, steps: int) -> dict[str, float]:
    """What the processes found, the median of each figure."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (Run(kind, ranks, rounds, steps, folder),), nprocs=ranks)
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=10, help="training steps per measurement")
    told = parser.parse_args()
    print(f"torch {torch.__version__}, CPU time of the training thread, µs/operator")
    print(f"{'':8}{'processes':>10}{'operators':>11}{'empty mode':>12}{'memexport':>11}{'× empty':>9}"
          f"{'× one process':>15}{'target':>8}")  # fmt: skip
    for kind in KINDS:
        one = measured(kind, 1, rounds=told.rounds, steps=told.steps)
        row(kind, 1, one, one, "")
        row(kind, told.ranks, measured(kind, told.ranks, rounds=told.rounds, steps=told.steps), one, TARGET)


def row(kind: str, ranks: int, found: dict[str, float], one: dict[str, float], target: str) -> None:
    """A line of the table."""
    beside_empty = found["memexport"] / found["empty"]
    beside_one = beside_empty / (one["memexport"] / one["empty"])
    costs = f"{found['empty']:12.2f}{found['memexport']:11.2f}{beside_empty:9.2f}{beside_one:15.2f}"
    print(f"{kind:8}{ranks:10}{found['operators']:11.0f}{costs}{target:>8}", flush=True)


if __name__ == "__main__":
    main()
