"""A module that was given keeps its names inside wrappers that were not; `take_peak` counts anew."""

from __future__ import annotations

import pytest
import torch
from recorded import operators, record, since_start
from torch import nn

import memexport
from memexport.errors import UsageError


class Wrapper(nn.Module):
    """What DistributedDataParallel is to the model in it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def modules(wrapped: nn.Module, *given: nn.Module) -> set[str | None]:
    """Of every matrix product, forward and backward."""
    work = lambda _: wrapped(torch.randn(2, 4)).sum().backward()  # noqa: E731 - one line says it
    events = operators(since_start(record(work, *given)))
    return {event.module for event in events if "mm" in event.name}


def test_a_given_module_keeps_its_names_inside_a_wrapper() -> None:
    inner = model()
    assert modules(Wrapper(Wrapper(inner)), inner) == {"0", "2"}


def test_a_wrapper_that_is_given_itself_names_what_is_in_it() -> None:
    wrapper = Wrapper(model())
    assert modules(wrapper, wrapper) == {"module.0", "module.2"}
    assert modules(wrapper, wrapper, wrapper.module) == {"module.0", "module.2"}


def test_without_given_modules_the_outermost_names_what_is_in_it() -> None:
    assert modules(Wrapper(model())) == {"module.0", "module.2"}


def test_the_peak_of_each_interval_is_counted_anew() -> None:
    with memexport.Tracker() as tracker:
        before = tracker.take_peak().get("cpu", 0)
        held = torch.empty(1_000, dtype=torch.uint8)
        del held
        small = torch.empty(10, dtype=torch.uint8)
        first = tracker.take_peak()["cpu"]
        nothing = tracker.take_peak()["cpu"]
        more = torch.empty(20, dtype=torch.uint8)
        second = tracker.take_peak()["cpu"]
        del small, more
    base = nothing - 10
    assert first == base + 1_000
    assert second == base + 30
    assert first >= before
    assert max(first, second) == tracker.summary().devices["cpu"].allocated.peak


def test_the_peaks_of_a_training_are_those_of_its_steps() -> None:
    net, peaks = model(), []
    with memexport.Tracker(net) as tracker:
        for rows in (2, 64, 8):
            net(torch.randn(rows, 4)).sum().backward()
            tracker.step()
            peaks.append(tracker.take_peak()["cpu"])
    assert peaks[1] == max(peaks) == tracker.summary().devices["cpu"].allocated.peak
    assert peaks[2] < peaks[1]


def test_nothing_recorded_has_no_peak() -> None:
    with pytest.raises(UsageError, match="nothing has been recorded"):
        memexport.Tracker().take_peak()
