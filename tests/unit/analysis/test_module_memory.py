"""Per-module memory, of a recording written out by hand; real ones are in tests/compat."""

from __future__ import annotations

from typing import Any

import pytest

from memexport.analysis import module_memory
from memexport.analysis.module_memory import ModuleMemory, ModuleMemoryFold
from memexport.model import Category, Device, EventBatch, EventKind, Phase, RecordingInfo, Tables

FORWARD, BACKWARD, RECOMPUTE = Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE


class Written:
    """A recording of one device, an event after another, each a nanosecond long."""

    def __init__(self, rank: int = -1) -> None:
        self.tables = Tables()
        self.rank = rank
        self.rows: list[dict[str, Any]] = []
        self.live: dict[int, dict[str, Any]] = {}

    def event(self, kind: EventKind, module: str | None, phase: Phase, **values: Any) -> int:
        time = 10 * len(self.rows)
        module_id = self.tables.strings.intern(module) if module else 0
        row = {"kind": kind, "module": module_id, "phase": phase, "time_unix_ns": time, "duration_ns": 1}
        row |= {"name": 0, "device": -1, "size_bytes": 0, "category": 0, "address": 0, "step": 0}
        row |= {"input_bytes": -1, "output_bytes": -1} | values
        self.rows.append(row | {"rank": self.rank})
        return len(self.rows) - 1

    def operator(self, module: str | None, phase: Phase) -> None:
        self.event(EventKind.OPERATOR, module, phase, device=0)

    def allocate(self, module: str | None, phase: Phase, size: int, category: Category) -> int:
        values = {"size_bytes": size, "category": category, "device": 0}
        at = self.event(EventKind.ALLOCATION, module, phase, address=len(self.rows) + 1, **values)
        self.operator(module, phase)
        return at

    def release(self, allocation: int, module: str | None, phase: Phase) -> None:
        address = self.rows[allocation]["address"]
        self.event(EventKind.RELEASE, module, phase, address=address, device=0)

    def span(self, module: str, phase: Phase, began: int, **values: int) -> None:
        name = self.tables.strings.intern(f"{module}'s class")
        self.event(EventKind.SPAN, module, phase, name=name, **values)
        span = self.rows[-1]
        span["time_unix_ns"], span["duration_ns"] = 10 * began - 5, 10 * (len(self.rows) - 1 - began) + 6

    def batches(self, length: int) -> list[EventBatch]:
        parts = [self.rows[at : at + length] for at in range(0, len(self.rows), length)]
        return [EventBatch(**{key: [row[key] for row in part] for key in part[0]}) for part in parts]


def written(steps: int = 1, rank: int = -1) -> Written:
    """A root with one layer, whose forward is also run again in its backward."""
    recording = Written(rank)
    recording.allocate("layer", Phase.OTHER, 100, Category.PARAMETER)
    recording.allocate("layer.part", Phase.OTHER, 10, Category.BUFFER)
    for step in range(steps):
        begin = len(recording.rows)
        made = recording.allocate("layer", FORWARD, 20 + step, Category.ACTIVATION)
        temporary = recording.allocate("layer", FORWARD, 7, Category.TEMPORARY)
        recording.release(temporary, "layer", FORWARD)
        recording.span("layer", FORWARD, begin, input_bytes=40 + step, output_bytes=20 + step)
        loss = recording.allocate("Root", FORWARD, 3, Category.ACTIVATION)
        recording.span("Root", FORWARD, begin)
        recording.operator(None, FORWARD)
        recording.operator("Root", BACKWARD)
        again = len(recording.rows)
        recomputed = recording.allocate("layer", RECOMPUTE, 50, Category.ACTIVATION)
        recording.span("layer", RECOMPUTE, again)
        gradient = recording.allocate("layer", BACKWARD, 5, Category.GRADIENT)
        for gone in (recomputed, made, loss):
            recording.release(gone, "layer", BACKWARD)
        recording.operator("layer", BACKWARD)
        recording.operator(None, Phase.OPTIMIZER)
        recording.release(gradient, None, Phase.OTHER)
    return recording


def folded(recording: Written, length: int = 1000) -> dict[tuple[str, Phase], ModuleMemory]:
    fold = ModuleMemoryFold(RecordingInfo(devices=[Device("cpu")]), recording.tables)
    for batch in recording.batches(length):
        fold.add(batch)
    return {(row.module, row.phase): row for row in fold.result()}


def test_a_forward_has_the_bytes_before_at_the_peak_and_after() -> None:
    layer = folded(written())["layer", FORWARD]
    assert (layer.class_name, layer.device, layer.passes) == ("layer's class", "cpu", 1)
    assert layer.last.before == {"parameter": 100, "buffer": 10}
    assert layer.last.peak == {"parameter": 100, "buffer": 10, "activation": 20, "temporary": 7}
    assert layer.last.peak_bytes == 137
    assert layer.last.after == {"parameter": 100, "buffer": 10, "activation": 20}


def test_the_activations_that_it_holds_are_those_made_in_it_and_below() -> None:
    modules = folded(written())
    assert modules["layer", FORWARD].last.activation_bytes == 20
    assert modules["Root", FORWARD].last.activation_bytes == 23


def test_a_call_says_what_went_in_and_what_came_out_where_that_is_known() -> None:
    modules = folded(written(2))
    layer = modules["layer", FORWARD].last
    assert (layer.input_bytes, layer.output_bytes) == (41, 21)
    for unknown in (modules["Root", FORWARD], modules["layer", BACKWARD], modules["layer", RECOMPUTE]):
        assert (unknown.last.input_bytes, unknown.last.output_bytes) == (None, None)


def test_parameters_and_buffers_are_those_of_the_module_and_below_it() -> None:
    modules = folded(written())
    for module in ("layer", "Root"):
        row = modules[module, FORWARD]
        assert (row.parameter_bytes, row.buffer_bytes) == (100, 10)


def test_a_backward_runs_from_the_first_to_the_last_event_of_the_subtree() -> None:
    modules = folded(written())
    layer, root = modules["layer", BACKWARD].last, modules["Root", BACKWARD].last
    assert layer.peak == {"parameter": 100, "buffer": 10, "activation": 73, "gradient": 5}
    assert layer.after == root.after == {"parameter": 100, "buffer": 10, "gradient": 5}
    assert root.peak == layer.peak


def test_a_recomputation_is_a_pass_of_its_own_and_part_of_the_backward() -> None:
    modules = folded(written())
    recomputation = modules["layer", RECOMPUTE].last
    assert recomputation.activation_bytes == 50
    assert modules["layer", BACKWARD].last.before == recomputation.before


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
def test_batches_may_be_cut_anywhere(length: int) -> None:
    recording = written(3)
    assert folded(recording, length) == folded(recording)


def test_many_steps_keep_the_highest_and_the_last_pass() -> None:
    recording = written(5)
    layer = folded(recording)["layer", FORWARD]
    assert layer.passes == 5
    assert layer.highest.peak_bytes == layer.last.peak_bytes == 141
    assert len(folded(recording)) == len(folded(written(1)))


def test_memory_does_not_grow_with_the_steps() -> None:
    fold = ModuleMemoryFold(RecordingInfo(devices=[Device("cpu")]), Tables())
    recording = written(50)
    for batch in recording.batches(16):
        fold.add(batch)
    (rank,) = fold._ranks.values()
    assert sum(map(len, rank._waiting)) < 40


def test_a_pass_that_is_too_long_is_seen_from_where_it_still_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module_memory, "MOST_EVENTS", 2)
    root = folded(written(), 1)["Root", FORWARD]
    assert root.last.after == {"parameter": 100, "buffer": 10, "activation": 23}


def test_ranks_are_apart() -> None:
    info = RecordingInfo(devices=[Device("cpu")])
    recordings = [written(1, rank) for rank in (0, 1)]
    fold = ModuleMemoryFold(info, recordings[0].tables)
    for recording in recordings:
        for batch in recording.batches(10):
            fold.add(batch)
    rows = [row for row in fold.result() if row.phase is FORWARD and row.module == "layer"]
    assert [row.device for row in rows] == ["rank 0 cpu", "rank 1 cpu"]
    assert rows[0].last == rows[1].last
