"""Per-module memory folded from recordings, against what torch's MemTracker says of the same modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from side_by_side import CASES, Theirs, by_module, cpu, snapshots_of, step, watch

import memexport
from memexport.analysis.module_memory import ModuleMemory, ModuleMemoryFold
from memexport.model import EventBatch, Phase, RecordingEnd, RecordingInfo, Tables

PEAKS = {Phase.FORWARD: "Peak-Forward", Phase.BACKWARD: "Peak-Backward"}


class FoldingExporter:
    """Folds a live recording."""

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        self.fold = ModuleMemoryFold(info, tables)

    def write(self, batch: EventBatch) -> None:
        self.fold.add(batch)

    def end(self, end: RecordingEnd) -> None:
        pass

    def abort(self) -> None:
        pass


def folded(case: str, steps: int = 1) -> tuple[tuple[ModuleMemory, ...], int]:
    """Every module's memory, and the bytes that were there before but are not the model's."""
    torch.manual_seed(0)
    model, inputs = CASES[case].model(), CASES[case].inputs()
    optimizer, exporter = torch.optim.AdamW(model.parameters()), FoldingExporter()
    with memexport.Tracker(model, optimizer=optimizer, exporters=[exporter]) as tracker:
        usage = tracker.usage()["cpu"]
        for _ in range(steps):
            step(model, optimizer, inputs, None)
            tracker.step()
    return exporter.fold.result(), usage["total"] - usage["parameter"] - usage.get("buffer", 0)


def name_there(row: ModuleMemory, root: str) -> str:
    return root if row.module == root else f"{root}.{row.module}"


@pytest.mark.parametrize("case", ["mlp", "convolutions with batch norm", "checkpointing", "tied weights"])
def test_peaks_are_those_of_torch(case: str) -> None:
    seen = watch(Theirs, CASES[case])
    theirs = by_module(seen.tracker)
    rows, others = folded(case)
    tensors = torch.utils._pytree.tree_leaves(seen.alive[2])
    others -= sum(tensor.nbytes for tensor in tensors)  # which torch was told of
    root = type(seen.alive[0]).__name__
    compared = 0
    for row in rows:
        taken = snapshots_of(theirs[name_there(row, root)]).get(PEAKS.get(row.phase, ""))
        if taken:
            compared += 1
            assert row.last.peak_bytes - others == cpu(taken[0])["Total"], (row.module, row.phase)
    assert compared >= 2 * len(theirs) - 1


def test_many_steps_are_counted() -> None:
    rows, _ = folded("checkpointing", 4)
    assert {row.passes for row in rows} == {4}
    assert {row.phase for row in rows} == {Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE}
    first: Any = next(row for row in rows if row.module == "first" and row.phase is Phase.RECOMPUTE)
    assert first.highest.step in range(4)
    assert first.parameter_bytes == sum(p.nbytes for p in CASES["checkpointing"].model().first.parameters())
