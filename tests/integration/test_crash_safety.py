"""What a recording is when its process dies or its disk fails: it opens, and holds whatever was written."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import memexport
from memexport import pipeline
from memexport.model import EventBatch, EventKind

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and limits")

KILLS = 200

# One process imports torch; each of those it forks trains until it is killed. What an exporter's `write` has
# returned for is counted in memory that survives the child.
KILLED = """
import gc, mmap, os, random, signal, struct, sys, time
import torch
from torch import nn
import memexport
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from pathlib import Path

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
shared = mmap.mmap(-1, 8)
rolls = random.Random(7)
torch.set_num_threads(1)


class Counting(ArchiveExporter):
    written = 0

    def write(self, batch):
        super().write(batch)
        self.written += len(batch)
        shared[:8] = struct.pack("q", self.written)


def train(path, is_wanted):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    exporter = Counting(FileDestination(path, atomic=False))
    with memexport.Tracker(model, optimizer=optimizer, exporters=[exporter], flush_interval=0.005) as tracker:
        while is_wanted():
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()


def written():
    return struct.unpack("q", shared[:8])[0]


server = os.getpid()
train(folder / "all is imported.memx", iter([True, False]).__next__)
gc.freeze()  # the tracker looks for tensors among the objects that gc knows: none of these
for number in range(kills):
    shared[:8] = bytes(8)
    path = folder / f"{number}.memx"
    child = os.fork()
    if child == 0:
        train(path, lambda: os.getppid() == server)  # it does not outlive a test that was broken off
        os._exit(1)
    begun = path.exists if number % 8 == 0 else written
    while not begun() and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.0005)
    time.sleep(rolls.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    print(number, written())
"""


def run(script: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **options)  # type: ignore[call-overload]


def events_of(path: Path) -> EventBatch:
    with memexport.open(path) as recording:
        return EventBatch.concat(list(recording.batches()))


def test_killed_at_any_moment_a_file_opens_with_every_batch_that_was_written(tmp_path: Path) -> None:
    killed = run(KILLED, tmp_path, KILLS)
    assert killed.returncode == 0, killed.stderr
    written = {int(number): int(events) for number, events in map(str.split, killed.stdout.splitlines())}
    assert len(written) == KILLS
    assert sum(events > 0 for events in written.values()) > KILLS / 2  # most died in the middle of their work
    for number, events in written.items():
        path = tmp_path / f"{number}.memx"
        if not path.stat().st_size:  # before the recording began
            assert events == 0
            continue
        with memexport.open(path) as recording:
            found = sum(map(len, recording.batches()))
            warnings = recording.end().warnings
        assert found >= events
        assert len(warnings) == 1
        assert "cut" in warnings[0]


TRAIN = """
import os, resource, signal, sys, time
from pathlib import Path
import torch, memexport
out = Path(sys.argv[1])
print("before", float(torch.arange(50.).exp().log().sum()), flush=True)
{before}
with memexport.Tracker(exporters=[out], flush_interval=0.01) as tracker:
    for number in range(60):
        total = sum(float(torch.arange(50.).exp().log().sum()) for _ in range(20))
        time.sleep(0.005)
        {meanwhile}
print("total", total)
print(tracker.summary().to_dict()["warnings"])
"""


def trained(out: Path, *, before: str = "", meanwhile: str = "") -> subprocess.CompletedProcess[str]:
    done = run(TRAIN.format(before=before, meanwhile=meanwhile), out)
    assert done.returncode == 0, done.stderr
    assert "total 24500.0" in done.stdout
    return done


def test_when_the_disk_is_full_training_goes_on_and_what_was_written_stays(tmp_path: Path) -> None:
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))"
    out = tmp_path / "full.memx"
    done = trained(out, before=limit)
    assert out.stat().st_size == 12_000
    assert len(events_of(out)) > 100
    assert "ArchiveExporter gave up" in done.stdout
    assert "File too large" in done.stderr


def test_a_file_that_is_removed_meanwhile_is_there_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "removed.memx"
    done = trained(out, meanwhile="number == 30 and out.unlink()")
    assert done.stdout.endswith("[]\n")
    events = events_of(out)
    assert int((events.kind == EventKind.OPERATOR).sum()) >= 60 * 20 * 4


def test_a_folder_that_is_removed_meanwhile_costs_a_warning(tmp_path: Path) -> None:
    out = tmp_path / "folder" / "removed.memx"
    out.parent.mkdir()
    done = trained(out, meanwhile="number == 30 and (out.unlink(), out.parent.rmdir())")
    assert "No such file or directory" in done.stdout


def test_a_clock_that_is_set_back_does_not_turn_events_round(tmp_path: Path) -> None:
    out = tmp_path / "back.memx"
    trained(out, meanwhile="number == 30 and setattr(time, 'time_ns', lambda: 0)")
    events = events_of(out)
    ends = (events.time_unix_ns + events.duration_ns)[events.kind == EventKind.OPERATOR]
    assert (ends[1:] >= ends[:-1]).all()
    assert int(ends[0]) > 1_600_000_000 * 10**9


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(memexport.OutputError, match="Permission denied"):
            memexport.Tracker(exporters=[tmp_path / "run.memx"]).start()
    finally:
        tmp_path.chmod(0o700)


SECOND = """
import sys, memexport
try:
    memexport.Tracker(exporters=[sys.argv[1]]).start()
except memexport.OutputError as error:
    print(error, error.hint)
"""


def test_of_two_processes_on_one_path_the_second_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "one.memx"
    import torch

    with memexport.Tracker(exporters=[out]):
        torch.ones(3)
        said = run(SECOND, out).stdout
        with pytest.raises(memexport.OutputError, match="another recording"):
            memexport.Tracker(exporters=[out]).start()
        torch.ones(3)
    assert "is being written by another recording" in said
    assert "a file of its own" in said
    assert int((events_of(out).kind == EventKind.OPERATOR).sum()) == 2
    with memexport.Tracker(exporters=[out]):  # and when it is complete, the next may have it
        torch.ones(3)
    assert int((events_of(out).kind == EventKind.OPERATOR).sum()) == 1


def test_a_worker_that_outlives_the_recording_does_not_keep_its_file_locked(tmp_path: Path) -> None:
    script = """
import os, sys, time, torch, memexport
for _ in range(2):
    with memexport.Tracker(exporters=[sys.argv[1]]):
        torch.ones(3)
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        children = [*globals().get("children", []), child]
for child in children:
    os.kill(child, 9)
"""
    done = run(script, tmp_path / "run.memx")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_a_recording_cut_anywhere_converts_with_a_warning(seed: int, tmp_path: Path) -> None:
    whole = tmp_path / "whole.memx"
    trained(whole)
    data = whole.read_bytes()
    cut = tmp_path / "cut.memx"
    cut.write_bytes(data[: random.Random(seed).randrange(2_000, len(data))])
    pipeline.convert(cut, tmp_path / "cut.pftrace")
    with memexport.open(cut) as recording:
        assert any("cut" in warning for warning in recording.summary().warnings)
