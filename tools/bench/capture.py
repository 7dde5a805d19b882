"""What recording costs per operator: memexport, an empty TorchDispatchMode, and torch's own trackers.

    python tools/bench/capture.py [--rounds 15] [--steps 20]

How it is measured says `rounds.py`.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from rounds import Costs, EmptyMode, Tools, Training, options
from torch.distributed._tools.mem_tracker import MemTracker

import memexport

TARGETS = {"memexport to .memx": "≤ 2.2 and ≤ 0.125"}
"""Of the two ratios."""


def main() -> None:
    """Measure and print."""
    told = options(str(__doc__))
    training = Training()
    model, optimizer = training.model, training.optimizer
    archive = Path(tempfile.mkdtemp()) / "run.memx"
    tools: Tools = {
        "empty TorchDispatchMode": EmptyMode,
        "memexport, no exporter": lambda: memexport.Tracker(model, optimizer=optimizer),
        "memexport to .memx": lambda: memexport.Tracker(model, optimizer=optimizer, exporters=[archive]),
        "torch MemTracker": lambda: training.registered(MemTracker()),
        "bare again": contextlib.nullcontext,
    }
    report(training.costs(tools, rounds=told.rounds, steps=told.steps))


def report(costs: Costs) -> None:
    """Print a line per tool."""
    added = costs.added_us
    empty, torch_tracker = added["empty TorchDispatchMode"], added["torch MemTracker"]
    print(f"{costs.operators} operators a step, {costs.bare_us:.2f} µs each without any tool")
    print(f"{'':30}{'adds µs/operator':>17}{'× empty':>9}{'× MemTracker':>14}{'target':>24}")
    for name, value in added.items():
        ratios = f"{value / empty:9.2f}{value / torch_tracker:14.3f}"
        print(f"{name:30}{value:17.2f}{ratios}{TARGETS.get(name, ''):>24}")


if __name__ == "__main__":
    main()
