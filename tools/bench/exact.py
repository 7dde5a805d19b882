"""How near a recorded peak is to the allocator's own, and what the exact mode costs.

    python tools/bench/exact.py [--rounds 15] [--steps 20]

Peaks: eight small models, two training steps each, above what there was before. The truth is the replay of
what the CPU's allocator tells `torch.profiler`. Cost: the demo's transformer as in `capture.py`; a mode's
figure is the median over the rounds of (its time − the bare time of the same round) per operator. Ends with 1
if the exact mode is not exact.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from exact_models import Training, allocator_peak, trainings

import memexport
from memexport.demo import SmallTransformer, training_step


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="training steps per measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    is_right = report_peaks()
    report_cost(options.rounds, options.steps)
    return 0 if is_right else 1


def report_peaks() -> bool:
    """Print a line per model; whether the exact mode is exact."""
    titles = f"{'allocator':>12}{'exact':>12}{'off':>7}{'operators':>12}{'off':>9}"
    print(f"{'peak above the start, bytes':28}{titles}")
    exact_off, default_off = [], []
    for name, training in trainings():
        truth = _peak_of(training, allocator_peak)
        exact = _peak_of(training, lambda work: _recorded_peak(work, "allocator"))
        default = _peak_of(training, lambda work: _recorded_peak(work, "operators"))
        exact_off.append(abs(exact - truth))
        default_off.append(abs(default - truth) / truth)
        print(f"{name:28}{truth:12,}{exact:12,}{exact - truth:7,}{default:12,}{default / truth - 1:9.2%}")
    worst, median = max(default_off), statistics.median(default_off)
    print(f"exact: at most {max(exact_off)} bytes off (target: 0)")
    print(f"operators: {median:.2%} off in the median (target: ≤ 2 %), {worst:.2%} at worst (≤ 5 %)")
    return not any(exact_off)


def report_cost(rounds: int, steps: int) -> None:
    """Print a line per mode."""
    torch.manual_seed(0)
    model = SmallTransformer()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        training_step(model, optimizer)
    modes: dict[str, Callable[[], Any]] = {
        "bare": contextlib.nullcontext,
        "operators": lambda: memexport.Tracker(model, optimizer=optimizer),
        "allocator": lambda: memexport.Tracker(model, optimizer=optimizer, capture="allocator"),
    }
    times: dict[str, list[float]] = {name: [] for name in modes}
    for _ in range(rounds):
        for name, mode in modes.items():
            times[name].append(_seconds_per_step(mode(), steps, lambda: training_step(model, optimizer)))
    with memexport.Tracker(model) as tracker:
        training_step(model, optimizer)
    operators = tracker.summary().operators
    print(f"\n{operators} operators a step, {statistics.median(times['bare']) / operators * 1e6:.2f} µs each")
    print(f"{'':12}{'adds µs/operator':>18}")
    for name in ("operators", "allocator"):
        added = (value - base for value, base in zip(times[name], times["bare"], strict=True))
        print(f"{name:12}{statistics.median(added) / operators * 1e6:18.2f}")


def _peak_of(training: Training, measure: Callable[[Callable[[], None]], int]) -> int:
    def work() -> None:
        training.step()
        training.step()

    torch.manual_seed(1)
    return measure(work)


def _recorded_peak(work: Callable[[], None], capture: Literal["operators", "allocator"]) -> int:
    with memexport.Tracker(capture=capture) as tracker:
        work()
    allocated = tracker.summary().devices["cpu"].allocated
    return allocated.peak - allocated.start if allocated else -1


def _seconds_per_step(mode: Any, steps: int, step: Callable[[], Any]) -> float:
    with mode:
        step()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - started) / steps


if __name__ == "__main__":
    sys.exit(main())
