"""What goes into a module's calls and what comes out of them, in bytes of storages."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import record
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import memexport
from memexport.model import EventKind, Phase

X = 4 * 32 * 8  # bytes of a float32 tensor of 32 × 8


class Calls(nn.Module):
    """Called with anything, returns what it was told to."""

    def __init__(self, returns: Any = None) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, *_arguments: Any, **_keywords: Any) -> Any:
        return self.returns


def calls(events: list[SimpleNamespace]) -> list[tuple[str, int, int]]:
    """Of each module call its path, and the bytes in and out."""
    spans = (event for event in events if event.kind is EventKind.SPAN and event.module is not None)
    return [(span.module, span.input_bytes, span.output_bytes) for span in spans]


def one_call(module: nn.Module, *arguments: Any, **keywords: Any) -> tuple[int, int]:
    [(_, took, gave)] = calls(record(lambda _: module(*arguments, **keywords), module))
    return took, gave


def x() -> torch.Tensor:
    return torch.ones(32, 8)


def test_every_call_says_what_it_took_and_what_it_gave() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 4)))

    def work(tracker: memexport.Tracker) -> None:
        for _ in range(2):
            model(x()).sum().backward()
            tracker.step()

    once = [("0", X, 2 * X), ("1.0", 2 * X, X // 2), ("1", 2 * X, X // 2), ("Sequential", X, X // 2)]
    assert calls(record(work, model)) == 2 * once


def test_arguments_by_name_and_within_tuples_lists_and_dicts_count() -> None:
    nested = Calls(OrderedDict(logits=x(), states=[(x(), x())]))
    assert one_call(nested, x(), [x(), "no tensor"], mask={"a": x()}) == (3 * X, 3 * X)


def test_a_call_without_tensors_takes_and_gives_nothing() -> None:
    assert one_call(Calls(3), "text") == (0, 0)


def test_a_storage_counts_once_and_whole_however_many_views_of_it_there_are() -> None:
    whole = x()
    assert one_call(Calls(whole[0]), whole, whole.t(), whole[:2]) == (X, X)


def test_a_tensor_without_a_storage_makes_the_sum_unknown() -> None:
    sparse = torch.eye(3).to_sparse()
    assert one_call(Calls(x()), x(), sparse) == (-1, X)


def test_meta_tensors_take_no_memory() -> None:
    assert one_call(Calls(torch.empty(8, device="meta")), torch.empty(8, device="meta"), x()) == (X, 0)


def test_a_call_that_raises_says_neither() -> None:
    class Raises(nn.Module):
        def forward(self, _x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("on purpose")

    model = nn.Sequential(nn.Linear(8, 8), Raises())

    def work(_tracker: memexport.Tracker) -> None:
        with pytest.raises(RuntimeError, match="on purpose"):
            model(x())

    assert calls(record(work, model)) == [("0", X, X), ("1", -1, -1), ("Sequential", -1, -1)]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        again: torch.Tensor = checkpoint(self.layer, value, use_reentrant=False)
        return again


@pytest.mark.parametrize(("stops_early", "expected"), [(False, (X, X)), (True, (-1, -1))])
def test_a_forward_that_is_run_again_says_both_unless_torch_cuts_it_short(
    stops_early: bool, expected: tuple[int, int]
) -> None:
    model = Checkpointed()

    def work(_tracker: memexport.Tracker) -> None:
        with set_checkpoint_early_stop(stops_early):
            model(x().requires_grad_()).sum().backward()

    recomputed = [event for event in record(work, model) if event.phase is Phase.RECOMPUTE]
    assert calls(recomputed) == [("layer", *expected)]


def test_a_fake_run_says_what_a_real_one_does(tmp_path: Path) -> None:
    said = []
    for fake in (False, True):
        path = tmp_path / f"{fake}.memx"
        with memexport.Tracker(exporters=[path], fake=fake):
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            model(torch.ones(32, 8)).sum().backward()
        batches = memexport.open(path).batches()
        said.append(
            [n for b in batches for n in zip(b.input_bytes, b.output_bytes, strict=True) if max(n) >= 0]
        )
    assert said[0] == said[1]
    assert len(said[0]) == 4


def test_torchs_tracker_agrees_about_the_first_step() -> None:
    """Of tensors that are no views: it counts a storage once for each tensor in it."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 4)))
    value = x()
    theirs = MemTracker()
    theirs.track_external(model, value)
    with theirs:
        model(value).sum().backward()
    stats = {stat.mod_fqn: (stat.input_mem, stat.output_mem) for stat in theirs.memory_tracking.values()}
    ours = {path: sizes for path, *sizes in calls(record(lambda _: model(value), model))}
    for name, (took, gave) in stats.items():
        path = name.partition(".")[2] or "Sequential"
        assert ours[path] == [took, gave], name
    assert len(stats) == len(ours) == 5
