"""compat.MemoryTracker: what torch's records, on the CPU too, named after the right module."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from side_by_side import mlp
from torch import nn
from torch.distributed._tools.memory_tracker import MemoryTracker as TheirMemoryTracker

import memexport
from memexport.compat import MemoryTracker
from memexport.errors import InputError, UsageError

MIB = 1024 * 1024


class Device:
    """What torch's tracker asks of an accelerator's module, answered as for one that holds 3 MiB."""

    def empty_cache(self) -> None:
        """Do nothing."""

    def memory_allocated(self) -> int:
        return 3 * MIB

    def memory_reserved(self) -> int:
        return 4 * MIB

    def memory_stats(self) -> dict[str, int]:
        return {"active_bytes.all.current": 3 * MIB, "num_alloc_retries": 2}


def run(tracker: Any, model: nn.Module, iterations: int = 1) -> None:
    tracker.start_monitor(model)
    for _ in range(iterations):
        model(torch.randn(8, 16)).sum().backward()
        model.zero_grad()
    tracker.stop()


@pytest.fixture
def recorded() -> MemoryTracker:
    tracker = MemoryTracker()
    run(tracker, mlp(), 2)
    return tracker


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch, "get_device_module", lambda *_: Device())
    return TheirMemoryTracker()


def names(tracker: Any) -> list[str]:
    return [name for name, _ in tracker.memories_allocated.values()]


def test_operators_are_those_of_torchs_tracker_with_its_numbering_in_forward(
    theirs: Any, recorded: MemoryTracker
) -> None:
    run(theirs, mlp(), 2)
    operators = [[name.split(".")[-2:] for name in names(tracker)] for tracker in (recorded, theirs)]
    assert operators[0] == operators[1]
    ours_forward = {name for name in names(recorded) if name.startswith(("0.forward", "1.forward"))}
    assert ours_forward <= set(names(theirs))
    assert {key: recorded._markers[key] for key in theirs._markers} == theirs._markers


def test_in_backward_torch_names_the_module_of_the_last_forward_where_ours_names_the_right_one(
    theirs: Any, recorded: MemoryTracker
) -> None:
    run(theirs, mlp())
    assert any(name.startswith("2.forward.threshold_backward") for name in names(theirs))
    assert any(name.startswith("1.backward.threshold_backward") for name in names(recorded))


def test_after_a_child_the_parent_runs_again_which_torch_does_not_notice(theirs: Any) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 2

    found = {}
    for key, tracker in (("theirs", theirs), ("ours", MemoryTracker())):
        model = Net()
        tracker.start_monitor(model)
        model(torch.ones(2))
        tracker.stop()
        found[key] = [name for name in names(tracker) if "mul" in name]
    assert found == {"theirs": ["inner.forward.mul.Tensor_0"], "ours": [".forward.mul.Tensor_0"]}


def test_the_counters_on_the_cpu_are_the_bytes_of_live_tensors() -> None:
    tracker = MemoryTracker()
    tracker.start_monitor(nn.Identity())
    kept = [torch.ones(MIB)]  # 4 MiB
    kept.append(torch.ones(2 * MIB))
    tracker.stop()
    (_, first), (_, second) = tracker.memories_allocated.values()
    assert second - first == 8
    assert tracker.memories_active == tracker.memories_reserved == tracker.memories_allocated


def test_torch_crashes_without_an_accelerator() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    with pytest.raises((AttributeError, RuntimeError, AssertionError)):
        run(TheirMemoryTracker(), mlp())


def test_every_iteration_has_its_markers_and_the_last_one_the_plain_names(recorded: MemoryTracker) -> None:
    markers = recorded._markers
    assert list(markers) == [
        "fw_start (iteration 1)",
        "fw_bw_boundary (iteration 1)",
        "fw_start",
        "fw_bw_boundary",
    ]
    assert names(recorded)[markers["fw_start"]].startswith("0.forward.")
    assert names(recorded)[markers["fw_bw_boundary"]].startswith(".sum.")


def test_the_summary_names_what_allocated_most(recorded: MemoryTracker, capsys: Any) -> None:
    recorded.summary(top=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "-" * 48,
        "The number of alloc retries are: 0",
        "Top 2 ops that generates memory are:",
    ]
    assert lines[3].endswith("MB")
    assert len(lines) == 6


def test_the_summary_is_torchs_text(theirs: Any, tmp_path: Path, capsys: Any) -> None:
    run(theirs, mlp())
    theirs.save_stats(str(tmp_path / "theirs.pickle"))
    theirs.summary()
    expected = capsys.readouterr().out
    ours = MemoryTracker()
    ours.load(tmp_path / "theirs.pickle")
    ours.summary()
    assert capsys.readouterr().out == expected


def test_torch_cannot_sum_up_what_it_loaded(theirs: Any, tmp_path: Path, capsys: Any) -> None:
    run(theirs, mlp())
    theirs.save_stats(str(tmp_path / "theirs.pickle"))
    loaded, ours = TheirMemoryTracker(), MemoryTracker()
    loaded.load(str(tmp_path / "theirs.pickle"))
    loaded.summary()
    assert "MB" not in capsys.readouterr().out
    ours.load(tmp_path / "theirs.pickle")
    ours.summary()
    assert "0.0MB" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run.memx", "run.pickle", "run.pkl", "run"])
def test_what_was_saved_is_loaded_again(recorded: MemoryTracker, tmp_path: Path, name: str) -> None:
    recorded.save_stats(tmp_path / name)
    recorded.save_stats(tmp_path / name)  # an existing file is replaced, as torch does
    loaded = MemoryTracker()
    loaded.load(tmp_path / name)
    for attribute in ("memories_allocated", "memories_active", "memories_reserved", "_markers", "_op_index"):
        assert getattr(loaded, attribute) == getattr(recorded, attribute)


def test_without_another_suffix_it_saves_an_archive(recorded: MemoryTracker, tmp_path: Path) -> None:
    for name, expected in (("a", "memexport.archive"), ("a.pickle", "torch.memory_tracker")):
        recorded.save_stats(tmp_path / name)
        with memexport.open(tmp_path / name) as recording:
            assert recording.info.format == expected


def test_torch_reads_our_pickle(recorded: MemoryTracker, tmp_path: Path, theirs: Any) -> None:
    recorded.save_stats(tmp_path / "ours.pickle")
    theirs.load(str(tmp_path / "ours.pickle"))
    assert theirs.memories_allocated == recorded.memories_allocated
    assert theirs._num_alloc_retries == 0


def test_a_loaded_recording_can_be_saved_in_another_format(recorded: MemoryTracker, tmp_path: Path) -> None:
    recorded.save_stats(tmp_path / "run.memx")
    loaded = MemoryTracker()
    loaded.load(tmp_path / "run.memx")
    loaded.save_stats(tmp_path / "run.jsonl")
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) > loaded._op_index


def test_a_pickle_of_ours_keeps_its_modules_in_backward(recorded: MemoryTracker, tmp_path: Path) -> None:
    recorded.save_stats(tmp_path / "ours.pickle")
    with memexport.open(tmp_path / "ours.pickle") as recording:
        top = recording.summary().top_operators
    assert ("aten.mm.default", "0") in {(row.operator, row.module) for row in top}


def test_nothing_in_a_pickle_is_executed(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("executed",)

    (tmp_path / "bad.pickle").write_bytes(pickle.dumps({"memories_allocated": Harmful()}))
    with pytest.raises(InputError):
        MemoryTracker().load(tmp_path / "bad.pickle")


def test_an_archive_needs_a_complete_recording(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no complete recording"):
        MemoryTracker().save_stats(tmp_path / "run.memx")


def test_it_records_once_at_a_time_and_stops_as_often_as_one_likes() -> None:
    tracker, model = MemoryTracker(), mlp()
    tracker.stop()
    tracker.start_monitor(model)
    with pytest.raises(AssertionError, match="already"):
        tracker.start_monitor(model)
    tracker.stop()
    tracker.stop()
    assert tracker.memories_allocated == {}
    tracker.summary()


def test_traces_are_plotted_as_torch_does(recorded: MemoryTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    calls = {
        name: lambda *args, name=name, **options: drawn.append((name, args, options))
        for name in ("figure", "plot", "xlabel", "ylabel", "legend")
    }
    pyplot = SimpleNamespace(**calls)
    monkeypatch.setitem(sys.modules, "matplotlib", SimpleNamespace(pyplot=pyplot))
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    recorded.show_traces()
    assert [name for name, *_ in drawn].count("figure") == 4
    labels = [options["label"] for name, _, options in drawn if name == "plot"]
    assert labels[:3] == ["allocated_memory", "active_memory", "reserved_memory"]
    assert labels[3:7] == list(recorded._markers)


def test_without_matplotlib_plotting_says_so(
    recorded: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError):
        recorded.show_traces()


def test_torch_leaves_an_attribute_on_every_module_where_ours_leaves_none(theirs: Any) -> None:
    for tracker, is_marked in ((theirs, True), (MemoryTracker(), False)):
        model = mlp()
        run(tracker, model)
        assert [hasattr(m, "_memory_tracker_is_root") for m in model.modules()] == [is_marked] * len(
            list(model.modules())
        )
