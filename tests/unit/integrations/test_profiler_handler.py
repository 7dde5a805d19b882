"""`memexport.integrations.profiler` under the real torch.profiler."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.profiler import profile, schedule

import memexport
from memexport.errors import UsageError
from memexport.integrations.profiler import handler
from memexport.model import EventKind


def train(profiler, steps):
    """Steps of a small model, each told to the profiler."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()


def recorded(folder, *outputs, steps=2, profile_memory=True, worker_name=None, **options):
    """What lies in the folder after a profiled training."""
    ready = handler(*(folder / output for output in outputs), worker_name=worker_name)
    with profile(profile_memory=profile_memory, on_trace_ready=ready, **options) as profiler:
        train(profiler, steps)
    return sorted(path.name for path in folder.iterdir())


def test_each_output_has_what_the_profiler_saw(tmp_path):
    assert recorded(tmp_path, "out.memx", "out.pftrace") == ["out.memx", "out.pftrace"]
    with memexport.open(tmp_path / "out.memx") as recording:
        summary = recording.summary()
        events = [
            recording.tables.strings.get(name)
            for batch in recording.batches()
            for name in batch.name[batch.kind == EventKind.OPERATOR]
        ]
    assert summary.devices["cpu"].allocated.peak > 0
    assert "aten::addmm" in events


def test_every_cycle_of_a_schedule_gets_a_file(tmp_path):
    cycles = schedule(wait=1, warmup=1, active=2, repeat=2)
    names = recorded(tmp_path, "out.memx", "at-{step}.memx", steps=10, schedule=cycles)
    assert names == ["at-4.memx", "at-8.memx", "out-2.memx", "out.memx"]
    for name in ("out.memx", "out-2.memx"):
        with memexport.open(tmp_path / name) as recording:
            assert recording.summary().steps == 2


def test_a_worker_has_its_name_in_its_files(tmp_path):
    assert recorded(tmp_path, "out.snapshot.pickle", worker_name="node-a") == ["out-node-a.snapshot.pickle"]


def test_of_several_ranks_each_writes_its_own_file(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert recorded(tmp_path, "out.memx") == ["out-1.memx"]


def test_a_profiler_without_memory_is_told_how_to_have_it(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "memexport"):
        assert recorded(tmp_path, "out.pftrace", profile_memory=False) == []
    assert "profile_memory=True" in caplog.text


def test_an_output_that_cannot_be_written_costs_a_warning_and_no_other_output(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "memexport"):
        assert recorded(tmp_path, "missing/out.pftrace", "out.memx") == ["out.memx"]
    assert "missing/out.pftrace" in caplog.text


def test_a_trace_that_something_else_has_saved_costs_a_warning(tmp_path, caplog):
    ready = handler(tmp_path / "out.pftrace")

    def both(profiler):
        profiler.export_chrome_trace(str(tmp_path / "trace.json"))
        ready(profiler)

    with (
        caplog.at_level(logging.WARNING, "memexport"),
        profile(profile_memory=True, on_trace_ready=both) as p,
    ):
        train(p, 1)
    assert "was not written" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((), "nothing to write to"),
        (("out.unknown",), "does not say which format"),
        (("out-{epoch}.memx",), "placeholder"),
    ],
    ids=["none", "no format", "another placeholder"],
)
def test_what_is_wrong_with_the_outputs_is_said_at_once(outputs, message):
    with pytest.raises(UsageError, match=message):
        handler(*outputs)
