"""What it costs to be ready for an OOM: a ring of the last events, in memory, nothing written.

    python tools/bench/oom.py [--rounds 15] [--steps 20]

How it is measured says `rounds.py`. The small ring loses events all the time, the large one does not.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import torch
from rounds import Costs, EmptyMode, Tools, Training, options

import memexport
from memexport.tracker.oom.report import OomReport

_SMALL, _LARGE = 20_000, 10_000_000
_TARGET = "≤ 1.5"


def main() -> None:
    """Measure and print."""
    told = options(str(__doc__))
    training = Training()
    model, optimizer = training.model, training.optimizer
    folder = Path(tempfile.mkdtemp())

    def ring(events: int) -> memexport.Tracker:
        return memexport.Tracker(model, optimizer=optimizer, on_oom=folder, oom_events=events)

    tools: Tools = {
        "empty TorchDispatchMode": EmptyMode,
        f"ring of {_SMALL:,} events": lambda: ring(_SMALL),
        f"ring of {_LARGE:,} events": lambda: ring(_LARGE),
        "memexport to .memx": lambda: memexport.Tracker(
            model, optimizer=optimizer, exporters=[folder / "run.memx"]
        ),
        "bare again": contextlib.nullcontext,
    }
    _report(training.costs(tools, rounds=told.rounds, steps=told.steps))
    _handle(training)


def _report(costs: Costs) -> None:
    empty = costs.added_us["empty TorchDispatchMode"]
    print(f"{costs.operators} operators a step, {costs.bare_us:.2f} µs each without any tool")
    print(f"{'':30}{'adds µs/operator':>17}{'× empty':>9}{'target':>9}")
    for name, value in costs.added_us.items():
        target = _TARGET if name.startswith("ring") else ""
        print(f"{name:30}{value:17.2f}{value / empty:9.2f}{target:>9}")


def _handle(training: Training) -> None:
    """How long the program is held up when memory does run out, by the size of the ring."""
    for events in (20_000, 200_000):
        reports: list[OomReport] = []
        with memexport.Tracker(training.model, on_oom=reports.append, oom_events=events) as tracker:
            while tracker.summary().events < events:
                for _ in range(20):
                    training.step()
            started = time.perf_counter()
            with contextlib.suppress(RuntimeError):
                torch.empty(1 << 50)
            seconds = time.perf_counter() - started
            written = reports[0].save(Path(tempfile.mkdtemp()) / "oom.memx")
        size = written.stat().st_size / 1e6
        print(f"{events:,} events: a report in {seconds:.2f} s, a file of {size:.1f} MB")


if __name__ == "__main__":
    main()
