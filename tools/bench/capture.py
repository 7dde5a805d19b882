"""What recording costs per operator: memexport, an empty TorchDispatchMode, and torch's own trackers.

    python tools/bench/capture.py [--rounds 15] [--steps 20]

One process, one thread of torch, one small transformer (attention, MLP, tied embedding, a checkpointed
block, AdamW). Each round times a few training steps under every tool in turn; a tool's figure is the median
over the rounds of (its time − the bare time of the same round) per operator.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

import memexport
from memexport.demo import SmallTransformer, training_step

TARGETS = {"memexport to .memx": "≤ 2.2 and ≤ 0.125"}
"""Of the two ratios."""


class EmptyMode(TorchDispatchMode):
    """Does nothing: what any tool built on a dispatch mode costs at least."""

    operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class CountingMode(EmptyMode):
    """Counts operators."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="training steps per measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallTransformer()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        training_step(model, optimizer)

    for _ in range(5):
        step()
    with CountingMode() as counting:
        step()
    operators = counting.operators
    folder = Path(tempfile.mkdtemp())
    archive = folder / "run.memx"
    tools: dict[str, Callable[[], Any]] = {
        "bare": contextlib.nullcontext,
        "empty TorchDispatchMode": EmptyMode,
        "memexport, no exporter": lambda: memexport.Tracker(model, optimizer=optimizer),
        "memexport to .memx": lambda: memexport.Tracker(model, optimizer=optimizer, exporters=[archive]),
        "torch MemTracker": lambda: _mem_tracker(model, optimizer),
        "bare again": contextlib.nullcontext,
    }
    times: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(options.rounds):
        for name, make in tools.items():
            # torch's tracker grows with every step it sees, so it gets fewer.
            steps = max(2, options.steps // 10) if name == "torch MemTracker" else options.steps
            times[name].append(_seconds_per_step(make(), step, steps) / operators * 1e6)
    _report(times, operators)


def _mem_tracker(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    return tracker


def _seconds_per_step(tool: Any, step: Callable[[], None], steps: int) -> float:
    # torch's tracker refuses a second iteration unless it is told to forget the first.
    before_step = getattr(tool, "reset_mod_stats", lambda: None)
    with tool:
        step()
        seconds = 0.0
        for _ in range(steps):
            before_step()
            started = time.perf_counter()
            step()
            seconds += time.perf_counter() - started
    return seconds / steps


def _report(times: dict[str, list[float]], operators: int) -> None:
    bare = times["bare"]
    added = {
        name: statistics.median(value - base for value, base in zip(values, bare, strict=True))
        for name, values in times.items()
    }
    empty, torch_tracker = added["empty TorchDispatchMode"], added["torch MemTracker"]
    print(f"{operators} operators a step, {statistics.median(bare):.2f} µs each without any tool")
    print(f"{'':30}{'adds µs/operator':>17}{'× empty':>9}{'× MemTracker':>14}{'target':>24}")
    for name, value in added.items():
        if name != "bare":
            ratios = f"{value / empty:9.2f}{value / torch_tracker:14.3f}"
            print(f"{name:30}{value:17.2f}{ratios}{TARGETS.get(name, ''):>24}")


if __name__ == "__main__":
    main()
