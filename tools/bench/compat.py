"""What the drop-in trackers cost per operator, beside torch's own and memexport's tracker.

    python tools/bench/compat.py [--rounds 15] [--steps 20]

The same model, rounds and arithmetic as tools/bench/capture.py.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from capture import CountingMode, EmptyMode
from torch.distributed._tools import mem_tracker, mod_tracker

import memexport
from memexport import compat
from memexport.demo import SmallTransformer, training_step

TARGET = "compat MemTracker ≤ 1.5 × memexport.Tracker, ≤ 0.15 × torch MemTracker"


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

    def registered(tracker: Any) -> Any:
        tracker.track_external(model, optimizer)
        return tracker

    tools: dict[str, Callable[[], Any]] = {
        "bare": contextlib.nullcontext,
        "empty TorchDispatchMode": EmptyMode,
        "memexport.Tracker": lambda: memexport.Tracker(model, optimizer=optimizer),
        "compat MemTracker": lambda: registered(compat.MemTracker()),
        "torch MemTracker": lambda: registered(mem_tracker.MemTracker()),
        "compat ModTracker": compat.ModTracker,
        "torch ModTracker": mod_tracker.ModTracker,
    }
    times: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(options.rounds):
        for name, make in tools.items():
            # torch's tracker grows with every step it sees, so it gets fewer.
            steps = max(2, options.steps // 10) if name == "torch MemTracker" else options.steps
            times[name].append(_seconds_per_step(make(), step, steps) / counting.operators * 1e6)
    _report(times, counting.operators)


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
    bare = times.pop("bare")
    added = {
        name: statistics.median(value - base for value, base in zip(values, bare, strict=True))
        for name, values in times.items()
    }
    print(f"{operators} operators a step, {statistics.median(bare):.2f} µs each without any tool")
    print(f"{'':30}{'adds µs/operator':>17}{'× Tracker':>11}{'× torch MemTracker':>20}")
    for name, value in added.items():
        ratios = f"{value / added['memexport.Tracker']:11.2f}{value / added['torch MemTracker']:20.3f}"
        print(f"{name:30}{value:17.2f}{ratios}")
    print(f"target: {TARGET}")


if __name__ == "__main__":
    main()
