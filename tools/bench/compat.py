"""What the drop-in trackers cost per operator, beside torch's own and memexport's tracker.

    python tools/bench/compat.py [--rounds 15] [--steps 20]

How it is measured says `rounds.py`.
"""

from __future__ import annotations

from rounds import Costs, EmptyMode, Tools, Training, options
from torch.distributed._tools import mem_tracker, mod_tracker

import memexport
from memexport import compat

TARGET = "compat MemTracker ≤ 1.5 × memexport.Tracker, ≤ 0.15 × torch MemTracker"


def main() -> None:
    """Measure and print."""
    told = options(str(__doc__))
    training = Training()
    tools: Tools = {
        "empty TorchDispatchMode": EmptyMode,
        "memexport.Tracker": lambda: memexport.Tracker(training.model, optimizer=training.optimizer),
        "compat MemTracker": lambda: training.registered(compat.MemTracker()),
        "torch MemTracker": lambda: training.registered(mem_tracker.MemTracker()),
        "compat ModTracker": compat.ModTracker,
        "torch ModTracker": mod_tracker.ModTracker,
    }
    report(training.costs(tools, rounds=told.rounds, steps=told.steps))


def report(costs: Costs) -> None:
    """Print a line per tool."""
    added = costs.added_us
    print(f"{costs.operators} operators a step, {costs.bare_us:.2f} µs each without any tool")
    print(f"{'':30}{'adds µs/operator':>17}{'× Tracker':>11}{'× torch MemTracker':>20}")
    for name, value in added.items():
        ratios = f"{value / added['memexport.Tracker']:11.2f}{value / added['torch MemTracker']:20.3f}"
        print(f"{name:30}{value:17.2f}{ratios}")
    print(f"target: {TARGET}")


if __name__ == "__main__":
    main()
