"""What the drop-in trackers print: torch's text."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from side_by_side import CASES, Ours, Theirs, watch

from memexport.compat._categories import MemRefType
from memexport.compat._snapshots import rendered_states_table, rendered_table

SNAPSHOT: Any = {
    torch.device("cpu"): {MemRefType.PARAM: 1024, MemRefType.ACT: 3, "Total": 1027},
    torch.device("cuda", 0): {MemRefType.PARAM: 2**21, MemRefType.ACT: 0, "Total": 2**21},
}


@pytest.mark.parametrize("units", ["B", "KiB", "MiB", "GiB"])
@pytest.mark.parametrize("when", ["current", "peak"])
def test_a_snapshot_is_printed_as_torch_prints_it(when: str, units: str, capsys: Any) -> None:
    printed = []
    for tracker_class in (Theirs, Ours):
        seen = watch(tracker_class, CASES["mlp"])
        seen.tracker.display_snapshot(when, units=units)
        printed.append(capsys.readouterr().out)
    # torch prints nothing at all where everything rounds to nothing.
    assert printed[1].strip() == printed[0].strip()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_modules_are_printed_as_torch_prints_them(depth: int, capsys: Any) -> None:
    printed = []
    for tracker_class in (Theirs, Ours):
        seen = watch(tracker_class, CASES["checkpointing"])
        seen.tracker.display_modulewise_snapshots(depth=depth, units="KiB")
        printed.append(capsys.readouterr().out)
    assert printed[1] == printed[0]
    assert ("Module:  Checkpointed.first.0" in printed[1]) == (depth == 3)


def test_nothing_tracked_is_said(capsys: Any) -> None:
    Ours().display_snapshot()
    Ours().display_snapshot(tabulate=True)
    assert capsys.readouterr().out == "No memory tracked.\n" * 2


def test_an_unknown_unit_is_refused() -> None:
    seen = watch(Ours, CASES["mlp"])
    with pytest.raises(ValueError, match=r"MB.*B, KiB, MiB, GiB"):
        seen.tracker.display_snapshot(units="MB")


def test_tables_need_no_package_where_torchs_do(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "tabulate", None)
    with pytest.raises(ImportError):
        watch(Theirs, CASES["mlp"]).tracker.display_snapshot(tabulate=True)
    seen = watch(Ours, CASES["mlp"])
    seen.tracker.display_snapshot(tabulate=True, units="KiB")
    seen.tracker.display_modulewise_snapshots(tabulate=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["Device", *MemRefType, "Total"]
    assert "Module:  Sequential" in lines


def test_tables_are_those_of_the_package_tabulate() -> None:
    assert rendered_table(SNAPSHOT, "KiB") == (
        "========  ===========  ============  ==========\n"
        "Device    Parameter    Activation    Total\n"
        "========  ===========  ============  ==========\n"
        "cpu       1.0 KiB      0.0 KiB       1.0 KiB\n"
        "cuda:0    2048.0 KiB   0.0 KiB       2048.0 KiB\n"
        "========  ===========  ============  =========="
    )
    assert rendered_states_table({"Pre": [SNAPSHOT]}, "B") == (
        "==============  ========  ===========  ============  =========\n"
        "State & Call    Device    Parameter    Activation    Total\n"
        "==============  ========  ===========  ============  =========\n"
        "Pre # 1         cpu       1024 B       3 B           1027 B\n"
        "..              cuda:0    2097152 B    0 B           2097152 B\n"
        "==============  ========  ===========  ============  ========="
    )
    assert rendered_states_table({}, "B") == ""
