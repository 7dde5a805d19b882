"""What falls out of a ring is forgotten, but for what still lives."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from failing import train, trained
from recorded import CollectingExporter
from torch import nn

import memexport
from memexport.model import Category, EventKind, Phase
from memexport.tracker.rows import ROW


def events_of(path: Path) -> list[SimpleNamespace]:
    """All events of a file, as plain Python."""
    collected = CollectingExporter()
    with memexport.open(path) as recording:
        collected.begin(recording.info, recording.tables)
        collected.batches = list(recording.batches())
    return collected.events()


def ring_of(tracker: memexport.Tracker) -> object:
    assert tracker._running is not None
    assert tracker._running._oom is not None
    return tracker._running._oom.ring


def held(model: nn.Module, optimizer: torch.optim.Optimizer, **options: object) -> dict[str, dict[str, int]]:
    """What lives in the middle of a forward after many steps, as a tracker sees it."""
    with memexport.Tracker(model, optimizer=optimizer, **options) as tracker:
        for _ in range(40):
            train(model, optimizer, 1, tracker.step)
            tracker.usage()  # takes what was logged, so that there are many chunks
        outputs = model(torch.ones(8, 64))
        found = tracker.usage()
        del outputs
    return found


@pytest.mark.parametrize("events", [1, 100, 1000, 1_000_000])
def test_what_lives_is_known_to_the_byte_whatever_fell_out(events: int, tmp_path: Path) -> None:
    expected = held(*trained())
    assert held(*trained(), on_oom=tmp_path, oom_events=events) == expected


def test_an_allocation_that_outlives_its_rows_keeps_who_made_it(tmp_path: Path) -> None:
    model, optimizer = trained()
    tracker = memexport.Tracker(model, on_oom=tmp_path, oom_events=10, record_stacks=True)
    with pytest.raises(MemoryError), tracker:
        kept = model(torch.ones(8, 64))
        tracker.step()
        for _ in range(10):
            train(model, optimizer, 1, tracker.step)
            tracker.usage()
        raise MemoryError
    del kept
    (path,) = tmp_path.iterdir()
    events = events_of(path)
    start = next(i for i, e in enumerate(events) if e.kind is EventKind.MARKER and e.name == "start")
    (made,) = (e for e in events[:start] if e.name == "aten.addmm.default" and e.size_bytes == 8 * 16 * 4)
    assert (made.module, made.phase, made.category) == ("2", Phase.FORWARD, Category.ACTIVATION)
    assert made.step == 0
    assert made.stack != 0
    with memexport.open(path) as recording:
        summary = recording.summary()
        assert any(Path(__file__).name in stack for stack in recording.tables.strings)
    assert summary.warnings == (f"{recording.end().dropped_events} events were dropped while recording: sums"
                                " and peaks may be too low",)  # fmt: skip


def test_steps_keep_their_numbers(tmp_path: Path) -> None:
    model, optimizer = trained()
    with pytest.raises(MemoryError), memexport.Tracker(model, on_oom=tmp_path, oom_events=1) as tracker:
        for _ in range(10):
            train(model, optimizer, 1, tracker.step)
            tracker.usage()
        torch.ones(3)
        raise MemoryError
    (path,) = tmp_path.iterdir()
    operators = [event for event in events_of(path) if event.kind is EventKind.OPERATOR]
    assert {event.step for event in operators} == {10}


def test_a_ring_takes_no_more_memory_than_it_was_given(tmp_path: Path) -> None:
    model, optimizer = trained()
    with memexport.Tracker(model, on_oom=tmp_path, oom_events=500) as tracker:
        sizes = []
        for _ in range(20):
            train(model, optimizer, 1, tracker.step)
            tracker.usage()
            contents = ring_of(tracker).contents()
            sizes.append((sum(map(len, contents.chunks)) // ROW.size, len(contents.baseline.rows)))
    most_in_a_step = max(after[0] - before[0] for before, after in pairwise(sizes))
    # The first rows are of what lived before, whatever other tests have left.
    assert max(rows for rows, _ in sizes[10:]) <= 500 + 2 * most_in_a_step
    assert sizes[-1][0] >= 500
    assert sizes[-1][1] == sizes[-5][1]


def test_what_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    with memexport.Tracker(on_oom=tmp_path, oom_events=1) as tracker:
        left = []
        for _ in range(30):
            torch.ones(10).mul_(2).sum().item()
            tracker.usage()
            left.append(len(ring_of(tracker).contents().baseline.rows))
        assert left[-1] == left[5]


def test_a_summary_of_a_ring_alone_is_of_the_last_events(tmp_path: Path) -> None:
    model, optimizer = trained()
    with memexport.Tracker(model, on_oom=tmp_path, oom_events=100) as tracker:
        for _ in range(10):
            train(model, optimizer, 1, tracker.step)
            tracker.usage()
        summary = tracker.summary()
    assert 0 < summary.events < 1000
    assert "events were dropped" in summary.warnings[0]
    assert tracker.summary().events > 0
    assert list(tmp_path.iterdir()) == []
