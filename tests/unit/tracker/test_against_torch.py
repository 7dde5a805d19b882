"""Side by side with torch's own trackers: equal where they are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recorded import operators, record
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.memory_tracker import MemoryTracker
from torch.distributed._tools.mod_tracker import ModTracker

import memexport
from memexport.demo import SmallTransformer, training_step
from memexport.model import Phase


def make(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = SmallTransformer(32)
    return model, torch.optim.AdamW(model.parameters())


def test_the_peak_of_a_step_is_what_mem_tracker_says() -> None:
    model, optimizer = make()
    theirs = MemTracker()
    theirs.track_external(model, optimizer)
    with theirs:
        training_step(model, optimizer)
    (snapshot,) = theirs.get_tracker_snapshot("peak").values()
    model, optimizer = make()
    with memexport.Tracker(model, optimizer=optimizer) as ours:
        before = ours.usage()["cpu"]["total"] - sum(p.numel() * 4 for p in model.parameters())
        training_step(model, optimizer)
    # What else lived in this process before (other tests' tensors) is ours alone to count.
    assert ours.usage("peak")["cpu"]["total"] - before == snapshot["Total"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="with an accelerator, torch's tracker runs")
def test_memory_tracker_crashes_on_a_cpu_build_where_ours_runs() -> None:
    theirs = MemoryTracker()
    model, optimizer = make()
    with pytest.raises((AttributeError, RuntimeError, AssertionError)):
        theirs.start_monitor(model)
        training_step(model, optimizer)
    with memexport.Tracker(model, optimizer=optimizer) as ours:
        training_step(model, optimizer)
    assert ours.summary().to_dict()["operators"] > 0


def test_mod_tracker_gives_a_shared_module_one_name_where_ours_gives_each_call_its_own() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            norm = nn.LayerNorm(4)
            self.first = nn.Sequential(nn.Linear(4, 4), norm)
            self.last = nn.Sequential(nn.Linear(4, 4), norm)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x))

    model, seen = Shared(), []
    tracker: Any = ModTracker()
    tracker.register_user_hooks(pre_fw_hook=lambda module, _: seen.append(tracker.get_known_fqn(module)))
    with tracker:
        model(torch.ones(2, 4))
    theirs = [name for name in seen if name and name.endswith(".1")]
    ours = [
        event.module
        for event in operators(record(lambda _: model(torch.ones(2, 4)), model))
        if event.name == "aten.native_layer_norm.default"
    ]
    assert len(theirs) == 2
    assert len(set(theirs)) == 1
    assert ours == ["first.1", "last.1"]


def test_the_legacy_pickles_modules_in_backward_are_wrong_where_ours_are_right() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    seen = operators(record(lambda _: model(torch.ones(2, 4)).sum().backward(), model))
    (tanh,) = [event for event in seen if event.name == "aten.tanh_backward.default"]
    assert (tanh.module, tanh.phase) == ("1", Phase.BACKWARD)
