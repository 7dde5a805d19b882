"""Shapes and stacks, when they are asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from recorded import CollectingExporter, operators
from torch import nn

import memexport
from memexport.model import EventBatch, EventKind
from memexport.tracker import held, stream


def forward_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 3)).sum()


def recorded(*, shapes: bool = False, stacks: bool = False, path: Path | None = None) -> CollectingExporter:
    exporter = CollectingExporter()
    outputs = [exporter] if path is None else [exporter, path]
    model = nn.Linear(3, 4)
    with memexport.Tracker(model, exporters=outputs, record_shapes=shapes, record_stacks=stacks):
        forward_of(model).backward()
        torch._foreach_add([torch.ones(5, dtype=torch.int32), torch.ones(1, 1)], 1)
    return exporter


def test_each_operator_carries_dtype_and_shape_of_its_tensors() -> None:
    exporter = recorded(shapes=True)
    inputs = {e.name: exporter.tables.strings.get(e.inputs) for e in operators(exporter.events())}
    assert inputs["aten.addmm.default"] == "float32[4], float32[2, 3], float32[3, 4]"
    assert inputs["aten._foreach_add.Scalar"] == "int32[5], float32[1, 1]"
    assert inputs["aten.mm.default"] == "float32[4, 2], float32[2, 3]"
    assert inputs["aten.ones.default"] is None


def test_each_operator_and_allocation_carries_the_users_frames() -> None:
    exporter = recorded(stacks=True)
    frames_of = {}
    for event in exporter.events():
        if event.kind in (EventKind.OPERATOR, EventKind.ALLOCATION) and event.name == "aten.addmm.default":
            frames = exporter.tables.stacks.frames(event.stack)
            frames_of[event.kind] = [exporter.tables.strings[frame] for frame in frames]
    assert frames_of[EventKind.OPERATOR] == frames_of[EventKind.ALLOCATION]
    *_, caller, innermost = frames_of[EventKind.OPERATOR]
    line = forward_of.__code__.co_firstlineno + 1
    assert innermost == f"{__file__}:{line}:forward_of"
    assert caller.endswith(":recorded")
    assert not any("site-packages/torch/" in frame for frame in frames_of[EventKind.OPERATOR])


def test_only_operators_and_allocations_have_details() -> None:
    exporter = recorded(shapes=True, stacks=True)
    batch = EventBatch.concat(exporter.batches)
    others = ~np.isin(batch.kind, (EventKind.OPERATOR, EventKind.ALLOCATION))
    assert not batch.inputs[others].any()
    assert not batch.stack[others].any()
    assert not batch.inputs[batch.kind == EventKind.ALLOCATION].any()


def test_without_asking_there_are_no_details() -> None:
    batch = EventBatch.concat(recorded().batches)
    assert not batch.inputs.any()
    assert not batch.stack.any()


def test_details_find_their_operator_wherever_the_log_is_cut(monkeypatch) -> None:
    whole = recorded(shapes=True, stacks=True)
    expected = [(e.name, whole.tables.strings.get(e.inputs)) for e in operators(whole.events())]
    monkeypatch.setattr(stream, "_CHUNK_ROWS", 1)
    monkeypatch.setattr(held, "_MOST_ROWS", 0)
    cut = recorded(shapes=True, stacks=True)
    assert len(cut.batches) > 20
    assert [(e.name, cut.tables.strings.get(e.inputs)) for e in operators(cut.events())] == expected
    assert all(e.stack for e in operators(cut.events()))


def test_archive_and_json_lines_keep_them(tmp_path: Path) -> None:
    exporter = recorded(shapes=True, stacks=True, path=tmp_path / "run.memx")
    with memexport.open(tmp_path / "run.memx") as recording:
        batch = EventBatch.concat(list(recording.batches()))
        assert recording.info.options["record_shapes"] == "true"
    original = EventBatch.concat(exporter.batches)
    assert np.array_equal(batch.inputs, original.inputs)
    assert np.array_equal(batch.stack, original.stack)
    memexport.convert(tmp_path / "run.memx", tmp_path / "run.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    (addmm,) = [x for x in lines if x["kind"] == "operator" and x["name"] == "aten.addmm.default"]
    assert addmm["inputs"].startswith("float32[4]")
    assert addmm["stack"][0].endswith(":forward_of")
    assert lines[-1]["stack"] is None


def test_recording_details_changes_no_result_and_leaves_no_frame_alive() -> None:
    class Watched:
        pass

    watched = Watched()
    before = sys.getrefcount(watched)
    recorded(stacks=True)
    assert sys.getrefcount(watched) == before
