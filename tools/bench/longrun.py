"""What a long run costs when 1 step in 1000 is recorded: time outside the windows, their price, file, memory.

    python tools/bench/longrun.py [--steps 100000] [--every 1000] [--plain 20000]

One process trains a tiny model (steps of some hundred microseconds) without a tracker, then `--steps` steps
under one, then without again. "Outside" are the steps that are not recorded in detail, and all that memexport
does meanwhile in its own threads; what it takes to open and close a window is a line of its own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import memexport

Times = npt.NDArray[np.int64]


def main() -> None:
    """Measure and print."""
    told = _options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train = _training()
    _timed(train, told.plain // 4, lambda: None)
    before, _ = _timed(train, told.plain, lambda: None)
    archive = Path(tempfile.mkdtemp()) / "run.memx"
    with memexport.Tracker(exporters=[archive], every=told.every) as tracker:
        early_rss = _rss_bytes()
        steps, ends = _timed(train, told.steps, tracker.step)
        late_rss = _rss_bytes()
    after, _ = _timed(train, told.plain, lambda: None)
    _report(np.concatenate([before, after]), steps, ends, told.every)
    _line("file", f"{archive.stat().st_size / 1e6:.2f}", "MB, target ≤ 100")
    _line("resident set grew", f"{(late_rss - early_rss) / 1e6:.2f}", "MB")
    _line("steps in the file", str(_steps(archive)), "")


def _training() -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    batch = torch.randn(64, 64)

    def train() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def _timed(train: Callable[[], None], count: int, step: Callable[[], None]) -> tuple[Times, Times]:
    """Nanoseconds of each training step with the call of `step` that ended the one before, and of that call.

    So a step that a window begins or ends with has the price of that in its second number.
    """
    whole, ends = np.zeros((2, count), np.int64)
    clock = time.perf_counter_ns
    began = clock()
    for number in range(count):
        train()
        trained = clock()
        step()
        ended = clock()
        whole[number], ends[number] = ended - began, ended - trained
        began = ended
    return whole, ends


def _report(plain: Times, steps: Times, ends: Times, every: int) -> None:
    number = np.arange(len(steps))
    opens, closes = number % every == every - 1, number % every == 0
    outside = steps[~opens & ~closes]
    _line("plain step", _two(plain.mean() / 1e3, np.median(plain) / 1e3), "µs")
    _line("step outside windows", _two(outside.mean() / 1e3, np.median(outside) / 1e3), "µs")
    ratios = outside.mean() / plain.mean(), np.median(outside) / np.median(plain)
    _line("ratio", _two(*ratios, digits=4), "target ≤ 1.01")
    _line("tracker.step() outside", f"{np.median(ends[~opens & ~closes]) / 1e3:.2f}", "µs median")
    _line("opening a window", f"{np.median(ends[opens]) / 1e6:.2f}", "ms median")
    _line("closing a window", f"{np.median(ends[closes]) / 1e6:.2f}", "ms median")
    _line("recorded step itself", f"{np.median((steps - ends)[closes]) / 1e6:.2f}", "ms median")
    _line("all in all", f"{steps.mean() / plain.mean():.4f}", "× a plain step, mean")


def _two(mean: float, median: float, digits: int = 2) -> str:
    return f"{mean:.{digits}f} mean {median:.{digits}f} median"


def _line(what: str, value: str, unit: str) -> None:
    print(f"{what:24}{value:>34} {unit}")


def _steps(archive: Path) -> int:
    with memexport.open(archive) as recording:
        return recording.summary().steps


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--plain", type=int, default=20_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
