"""The buckets in which DistributedDataParallel gathers gradients have names. One process of gloo will do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from recorded import record
from torch import nn

from memexport.model import Category, EventKind

FIRST_BYTES, SECOND_BYTES = (100 * 70 + 70) * 4, (64 * 100 + 100) * 4
"""Of the gradients of the last layer, and of those of the first."""


@pytest.fixture(autouse=True)
def _one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 70))


def train(wrapped: nn.Module, steps: int = 3) -> list[SimpleNamespace]:
    def work(_: object) -> None:
        for _ in range(steps):
            wrapped(torch.ones(4, 64)).sum().backward()
            wrapped.zero_grad()

    return record(work, wrapped)


def held(events: list[SimpleNamespace]) -> dict[str, int]:
    """Bytes by module of the gradients that live at the end."""
    live = {}
    for event in events:
        if event.kind is EventKind.ALLOCATION:
            live[event.address] = event
        elif event.kind is EventKind.RELEASE:
            live.pop(event.address, None)
    return {e.module: e.size_bytes for e in live.values() if e.category is Category.GRADIENT}


@pytest.mark.parametrize("view", [False, True], ids=["copied", "views"])
def test_each_bucket_has_the_number_of_its_turn(view: bool) -> None:
    wrapped = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.02, gradient_as_bucket_view=view)
    gradients = held(train(wrapped))
    # The last layer's gradients come first.
    assert gradients["DDP bucket 0"] == FIRST_BYTES
    assert gradients["DDP bucket 1"] == SECOND_BYTES


def test_the_one_bucket_of_the_first_iteration_is_the_first() -> None:
    gradients = held(train(nn.parallel.DistributedDataParallel(model()), steps=1))
    assert gradients["DDP bucket 0"] == FIRST_BYTES + SECOND_BYTES


def test_gradients_that_the_program_reduces_itself_are_no_buckets() -> None:
    plain = model()
    for parameter in plain.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    events = train(plain)
    assert "c10d.allreduce_.default" in {event.name for event in events}
    assert not any("bucket" in (event.module or "") for event in events)


def test_what_is_reduced_outside_of_a_backward_is_no_bucket() -> None:
    wrapped = nn.parallel.DistributedDataParallel(model())

    def work(_: object) -> None:
        with wrapped.no_sync():
            wrapped(torch.ones(4, 64)).sum().backward()
        for parameter in wrapped.parameters():
            dist.all_reduce(parameter.grad)

    assert not any("bucket" in (event.module or "") for event in record(work, wrapped))
