"""Beside an accelerator that torch's legacy profiler does not know, it is left alone: it would print."""

from __future__ import annotations

import pytest
import torch
from recorded import record
from torch import nn

import memexport
from memexport.errors import UsageError
from memexport.model import EventKind
from memexport.tracker import inside, legacy_profiler


def accelerator(monkeypatch: pytest.MonkeyPatch, type_: str | None, *, is_used: bool | None) -> None:
    device = None if type_ is None else torch.device(type_)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)

    def answer(_: str) -> bool:
        if is_used is None:
            raise RuntimeError("nobody knows")
        return is_used

    monkeypatch.setattr(legacy_profiler, "is_allocator_used", answer)


@pytest.mark.parametrize(
    ("type_", "is_used", "prints"),
    [
        (None, None, False),
        ("cuda", True, False),
        ("mps", True, False),
        ("xpu", False, False),
        ("xpu", True, True),
        ("xpu", None, True),
    ],
)
def test_it_prints_of_what_it_does_not_know_and_is_in_use(
    type_: str | None, is_used: bool | None, prints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator(monkeypatch, type_, is_used=is_used)
    assert legacy_profiler.prints_of_accelerator() is prints


def lstm() -> object:
    return nn.LSTM(16, 32)(torch.randn(20, 8, 16))


def test_then_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator(monkeypatch, "xpu", is_used=True)
    monkeypatch.setattr(inside._autograd, "_enable_profiler_legacy", lambda _: pytest.fail("it is on"))
    events = record(lambda _: lstm())
    assert EventKind.SAMPLE not in {event.kind for event in events}


def test_from_its_first_use_on_nothing_is_measured_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_: memexport.Tracker) -> None:
        lstm()
        accelerator(monkeypatch, "xpu", is_used=True)
        monkeypatch.setattr(inside._autograd, "_enable_profiler_legacy", lambda _: pytest.fail("it is on"))
        nn.GRU(16, 32)(torch.randn(20, 8, 16))

    accelerator(monkeypatch, "xpu", is_used=False)
    assert EventKind.SAMPLE in {event.kind for event in record(work)}


def test_then_the_allocators_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator(monkeypatch, "xpu", is_used=True)
    with pytest.raises(UsageError, match="torch would print a line for each allocation"):
        memexport.Tracker(capture="allocator").start()
