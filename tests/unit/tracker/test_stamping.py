"""CUDA's own snapshots say what made an allocation. No GPU is needed: torch's functions are stood in for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memexport
from memexport.analysis.stamps import Stamp
from memexport.errors import UsageError
from memexport.model import Phase


class Metadata:
    """What torch keeps with the allocations to come."""

    def __init__(self) -> None:
        self.text = ""
        self.seen: list[str] = []

    def set(self, text: str) -> None:
        self.text = text
        self.seen.append(text)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Metadata:
    kept = Metadata()
    monkeypatch.setattr(torch._C, "_cuda_setMemoryMetadata", kept.set, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getMemoryMetadata", lambda: kept.text, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    return kept


def step(model: nn.Module) -> None:
    model(torch.ones(2, 4)).sum().backward()


def test_each_operator_is_stamped_with_its_module_and_phase(metadata: Metadata) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with memexport.Tracker(model, annotate_snapshots=True):
        step(model)
    stamps = [stamp for text in metadata.seen if (stamp := Stamp.parse(text)) is not None]
    assert (Phase.FORWARD, "aten.addmm.default", "0") in stamps
    assert (Phase.FORWARD, "aten.relu.default", "1") in stamps
    assert (Phase.BACKWARD, "aten.threshold_backward.default", "1") in stamps


def test_between_operators_the_programs_own_text_holds(metadata: Metadata) -> None:
    metadata.text = "mine"
    with memexport.Tracker(annotate_snapshots=True):
        torch.ones(3)
        assert metadata.text == "mine"
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        assert metadata.text == "mine"
    torch.ones(3)
    assert metadata.text == "mine"


def test_before_cuda_is_in_use_nothing_is_stamped(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with memexport.Tracker(annotate_snapshots=True):
        torch.ones(3)
    assert metadata.seen == []


def test_unless_asked_to_it_stamps_nothing(metadata: Metadata) -> None:
    with memexport.Tracker():
        torch.ones(3)
    assert metadata.seen == []


@pytest.mark.skipif(hasattr(torch._C, "_cuda_setMemoryMetadata"), reason="this torch has CUDA")
def test_a_torch_without_cuda_is_told_of() -> None:
    with pytest.raises(UsageError, match="keeps no text with CUDA's allocations"):
        memexport.Tracker(annotate_snapshots=True).start()


def test_simulated_tensors_are_in_no_snapshot(metadata: Metadata) -> None:
    with pytest.raises(UsageError, match="simulated"):
        memexport.Tracker(annotate_snapshots=True, fake=True).start()
