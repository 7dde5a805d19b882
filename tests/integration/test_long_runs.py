"""Long runs: a few steps in detail, the rest in summary, in a file that stays small."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import memexport
import memexport.tracker
from memexport.model import EventBatch, EventKind, StringTable

# The recordings are made once, by the worker that has all tests of them.
pytestmark = pytest.mark.xdist_group("long runs")

STEPS, EVERY, WINDOW = 2_100, 500, 2
RECORDED = [step for step in range(STEPS) if step % EVERY < WINDOW]
WORK = (EventKind.OPERATOR, EventKind.ALLOCATION, EventKind.RELEASE)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another make tiny steps slow wherever something else runs too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Training:
    """A small model with all that a step has; each step is the same whenever it has the same number."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self, number: int) -> None:
        torch.manual_seed(number)
        self.model(torch.randn(16, 8)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> list[torch.Tensor]:
        return [tensor.detach() for tensor in self.model.state_dict().values()]


def trained(path: Path, **options: Any) -> tuple[Training, memexport.tracker.Tracker]:
    gc.collect()
    training = Training()
    with memexport.Tracker(training.model, exporters=[path], **options) as tracker:
        for number in range(STEPS):
            training.step(number)
            tracker.step()
    return training, tracker


def read(path: Path) -> tuple[EventBatch, StringTable]:
    with memexport.open(path) as recording:
        return EventBatch.concat(list(recording.batches())), recording.tables.strings


BOTH = f"""
import sys
from pathlib import Path
from test_long_runs import trained
trained(Path(sys.argv[1]))
trained(Path(sys.argv[2]), every={EVERY}, window={WINDOW})
"""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same training, recorded in full and in windows, in a process where no test has left any tensor."""
    folder = tmp_path_factory.mktemp("long")
    full, part = folder / "full.memx", folder / "part.memx"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", BOTH, full, part], env=environment, check=True, timeout=240)
    return full, part


def work_of(path: Path, step: int) -> list[tuple[Any, ...]]:
    """What the program did in a step: not what was found to be live before its first operator."""
    batch, strings = read(path)
    of_step = np.flatnonzero((batch.step == step) & np.isin(batch.kind, WORK))
    first = int(np.argmax(batch.kind[of_step] == EventKind.OPERATOR))
    # The first operator's own allocation stands before it.
    begin = first - 1 if batch.kind[of_step[first - 1]] == EventKind.ALLOCATION else first
    rows = of_step[begin:]
    names = ("kind", "phase", "category", "size_bytes", "allocated_bytes", "active_bytes")
    columns = [getattr(batch, name)[rows].tolist() for name in names]
    columns += [[strings.get(i) for i in getattr(batch, name)[rows].tolist()] for name in ("name", "module")]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("step", [1, 500, 501, 1000, 2001])
def test_a_recorded_step_is_what_the_full_recording_has_of_it(
    recordings: tuple[Path, Path], step: int
) -> None:
    full, part = recordings
    assert work_of(part, step) == work_of(full, step)


def test_the_peak_and_what_it_is_made_of_are_those_of_the_full_recording(
    recordings: tuple[Path, Path],
) -> None:
    full, part = (memexport.open(path).summary().to_dict()["devices"]["cpu"] for path in recordings)
    for key in ("peak_operator", "peak_module", "peak_phase", "categories_at_peak", "modules_at_peak"):
        assert part[key] == full[key]
    assert part["allocated"]["peak"] == full["allocated"]["peak"]


def test_every_step_is_there_and_only_the_recorded_ones_have_operators(
    recordings: tuple[Path, Path],
) -> None:
    _, part = recordings
    batch, strings = read(part)
    spans = (batch.kind == EventKind.SPAN) & (batch.name == strings.find("step"))
    assert batch.step[spans].tolist() == list(range(STEPS))
    assert (batch.duration_ns[spans] > 0).all()
    assert sorted(set(batch.step[batch.kind == EventKind.OPERATOR].tolist())) == RECORDED
    assert part.stat().st_size < recordings[0].stat().st_size / 20


def test_training_gives_the_same_weights(tmp_path: Path) -> None:
    plain = Training()
    for number in range(STEPS):
        plain.step(number)
    tracked, _ = trained(tmp_path / "run.memx", every=EVERY, window=WINDOW)
    assert all(torch.equal(a, b) for a, b in zip(plain.weights(), tracked.weights(), strict=True))


def test_the_trackers_memory_does_not_grow_with_the_run() -> None:
    training, used = Training(), []
    tracemalloc.start()
    with memexport.Tracker(training.model, every=100, window=1) as tracker:
        for number in range(1_501):
            training.step(number)
            tracker.step()
            if number % 500 == 0 and number:
                tracker.summary()
                gc.collect()
                ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/memexport/*")])
                used.append(sum(statistic.size for statistic in ours.statistics("filename")))
    tracemalloc.stop()
    assert used[-1] - used[0] < 200_000  # 1000 steps and 10 windows later


def test_the_trace_shows_the_pauses_and_the_steps(
    recordings: tuple[Path, Path], tmp_path: Path, load_trace: Callable[[Path], Any]
) -> None:
    memexport.convert(recordings[1], tmp_path / "part.pftrace")
    trace = load_trace(tmp_path / "part.pftrace")
    shown = "select count(*) as n from slice where dur > 0 and name glob"
    (pauses,), (steps,) = trace.query(f"{shown} 'not recorded'"), trace.query(f"{shown} 'step*'")
    assert (pauses["n"], steps["n"]) == (STEPS // EVERY + 1, STEPS)


def test_metrics_have_every_steps_duration_and_the_peaks_of_recorded_ones(
    recordings: tuple[Path, Path], tmp_path: Path
) -> None:
    memexport.convert(recordings[1], tmp_path / "part.otlp.jsonl")
    counts: dict[str, int] = {}
    for line in (tmp_path / "part.otlp.jsonl").read_text().splitlines():
        for metric in json.loads(line)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]:
            kind = metric.get("exponentialHistogram") or metric.get("histogram")
            for point in kind["dataPoints"] if kind and metric["name"].startswith("memexport.step") else ():
                counts[metric["name"]] = int(point["count"])
    assert counts == {"memexport.step.duration": STEPS, "memexport.step.memory.peak": len(RECORDED)}


def test_events_that_a_hung_disk_costs_are_counted_wherever_the_recording_is_read(tmp_path: Path) -> None:
    class Hangs:
        """Writes nothing until it may."""

        def __init__(self) -> None:
            self.may_go_on = threading.Event()

        def begin(self, *_: Any) -> None:
            pass

        def write(self, _: EventBatch) -> None:
            self.may_go_on.wait()

        def end(self, _: Any) -> None:
            pass

        abort = begin

    hangs, path, training = Hangs(), tmp_path / "run.memx", Training()
    with memexport.Tracker(exporters=[hangs, path], flush_interval=0.01) as tracker:
        for number in range(2_000):
            training.step(number)
            tracker.summary()  # takes what there is
            if tracker._running._export.dropped_events:  # type: ignore[union-attr]  # it records
                break
        hangs.may_go_on.set()
    batch, _ = read(path)
    dropped = tracker.summary().to_dict()["events"] - len(batch)
    assert dropped > 0
    with memexport.open(path) as recording:
        warnings = recording.summary().warnings
        assert recording.end().dropped_events == dropped
    assert f"{dropped} events were dropped while recording: sums and peaks may be too low" in warnings
    memexport.convert(path, tmp_path / "run.otlp.jsonl")
    assert '"memexport.events.dropped"' in (tmp_path / "run.otlp.jsonl").read_text()


SCRIPT = """\
import torch
from torch import nn
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range({steps}):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(folder: Path, *options: str, steps: int = 60) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT.format(steps=steps))
    command = [sys.executable, "-m", "memexport", "run", *options, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        pytest.param(["--every", "20"], [0, 20, 40], id="every"),
        pytest.param(["--every", "25", "--window", "2"], [0, 1, 25, 26, 50, 51], id="window"),
        pytest.param(["--steps", "3:5", "--steps", "50:51"], [3, 4, 50], id="steps"),
    ],
)
def test_run_records_the_steps_that_it_is_told_to(
    tmp_path: Path, options: list[str], recorded: list[int]
) -> None:
    done = run(tmp_path, "-o", "run.memx", *options)
    assert done.returncode == 0, done.stderr
    batch, strings = read(tmp_path / "run.memx")
    # What comes after the last step is in a step of its own, that never ends.
    operators = set(batch.step[batch.kind == EventKind.OPERATOR].tolist()) - {60}
    assert sorted(operators) == recorded
    assert np.count_nonzero((batch.kind == EventKind.SPAN) & (batch.name == strings.find("step"))) == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--window", "2"], "every", id="window-alone"),
        pytest.param(["--every", "5", "--window", "5"], "leaves none out", id="window-too-long"),
        pytest.param(["--steps", "5"], "A:B", id="no-range"),
        pytest.param(["--steps", "5:3"], "no range", id="backwards"),
        pytest.param(["--every", "5", "--fake"], "--fake", id="fake"),
        pytest.param(["--every", "5", "--capture", "allocator"], "--capture", id="allocator"),
        pytest.param(["--max-size", "5KiB"], "within 5120 bytes", id="size-too-small"),
        pytest.param(["--max-size", "5MiB", "-o", "run.jsonl"], "only an archive", id="no-archive"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_program_runs(
    tmp_path: Path, options: list[str], message: str
) -> None:
    done = run(tmp_path, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["train.py"]


def test_a_file_with_a_limit_stays_within_it_and_says_what_is_missing(tmp_path: Path) -> None:
    done = run(tmp_path, "-o", "run.memx", "--max-size", "1MiB", steps=6_000)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run.memx").stat().st_size <= 2**20
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".memx"] == ["run.memx"]
    batch, strings = read(tmp_path / "run.memx")
    steps = batch.step[(batch.kind == EventKind.SPAN) & (batch.name == strings.find("step"))]
    assert (steps[0], steps[-1]) == (0, 5_999)
    summary = memexport.open(tmp_path / "run.memx").summary().to_dict()
    assert any("events were dropped" in warning for warning in summary["warnings"])
    assert summary["devices"]["cpu"]["categories_at_peak"]["parameter"] == (64 + 8) * 4
