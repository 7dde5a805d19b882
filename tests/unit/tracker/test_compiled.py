"""Models whose operators torch.compile replaced by kernels of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch._inductor.codecache import PyCodeCache

import memexport
from memexport.tracker import compiled as compiled_regions

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")


class Model(nn.Module):
    """Has operators to fuse around those that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        return self.down(self.norm(nn.functional.gelu(x) * x.sigmoid())).softmax(-1)


@pytest.fixture(scope="module")
def compiled() -> Iterator[nn.Module]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.compile(Model())
    x = torch.ones(512, 64)
    model(x).sum().backward()  # compile both ways
    model.zero_grad()
    yield model
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    PyCodeCache.cache_clear()  # no other test is warned of this code


def after_a_forward(model: nn.Module, capture: str) -> tuple[dict[str, int], memexport.Tracker]:
    x = torch.ones(512, 64)
    with memexport.Tracker(model, capture=capture) as tracker:  # type: ignore[arg-type]  # either literal
        loss = model(x).sum()
        usage = tracker.usage()["cpu"]
        loss.backward()
        del loss
    model.zero_grad()
    return usage, tracker


def test_what_a_compiled_forward_leaves_behind_is_counted_to_the_byte(compiled: nn.Module) -> None:
    found, _ = after_a_forward(compiled, "operators")
    truth, _ = after_a_forward(compiled, "allocator")
    assert found["activation"] > 512 * 256 * 4
    assert found == truth


def test_a_warning_says_once_what_is_not_seen_and_who_sees_it(compiled: nn.Module) -> None:
    warnings = after_a_forward(compiled, "operators")[1].summary().warnings
    assert len([warning for warning in warnings if "torch.compile" in warning]) == 1
    assert 'capture="allocator"' in " ".join(warnings)
    exact = after_a_forward(compiled, "allocator")[1].summary().warnings
    assert not any("torch.compile" in warning for warning in exact)


def test_without_inductors_code_there_is_nothing_to_warn_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PyCodeCache, "modules", [])
    assert not compiled_regions.has_own_kernels()


def test_results_are_the_same_and_nothing_is_compiled_again(compiled: nn.Module) -> None:
    x = torch.rand(512, 64)
    plain = compiled(x)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with memexport.Tracker(compiled):
        tracked = [compiled(x) for _ in range(4)]
    assert all(torch.equal(plain, result) for result in tracked)
    assert torch.equal(compiled(x), plain)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_saved_tensors_of_the_users_own_hooks_are_not_unpacked(compiled: nn.Module) -> None:
    unpacked: list[torch.Tensor] = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack),
        memexport.Tracker(compiled),
    ):
        compiled(torch.ones(512, 64))
    assert unpacked == []


def test_a_model_that_compiles_itself_is_known_as_one_that_was_wrapped(compiled: nn.Module) -> None:
    """`model.compile()`: its module, what comes out of it, and what it keeps for its backward."""
    torch.manual_seed(0)
    model = Model()
    model.compile()
    model(torch.ones(512, 64)).sum().backward()
    model.zero_grad()
    found, tracker = after_a_forward(model, "operators")
    assert found == after_a_forward(model, "allocator")[0]
    assert found == after_a_forward(compiled, "operators")[0]
    assert "up" in {row.module for row in tracker.summary().devices["cpu"].modules_at_peak}


def test_what_a_compiled_function_returns_and_keeps_is_counted_once_an_operator_is_given_it() -> None:
    """To the byte, as the allocator says; it is a function, so no hook is told of it."""
    weight, x = torch.randn(64, 256, requires_grad=True), torch.randn(512, 64)
    function = torch.compile(lambda x: torch.nn.functional.gelu(x @ weight).sin() + 1)
    function(x).sum().backward()
    usage = {}
    for capture in ("operators", "allocator"):
        weight.grad = None
        with memexport.Tracker(capture=capture) as tracker:  # type: ignore[arg-type]  # either literal
            before = tracker.usage()["cpu"]["total"]
            result = function(x)
            kept = result.sum()
            usage[capture] = tracker.usage()["cpu"]["total"] - before
        made = [row.operator for row in tracker.summary().devices["cpu"].operators_at_peak]
        assert {"operators": "torch.compile", "allocator": "(no operator)"}[capture] in made
        del result, kept
    assert usage["operators"] == usage["allocator"] > 512 * 256 * 4


def test_a_compiled_function_is_known_although_it_is_compiled_while_it_is_tracked() -> None:
    """From the second step on."""
    function = torch.compile(lambda x: x.sin() + 1)
    x = torch.randn(1000, 1000)
    PyCodeCache.cache_clear()
    with memexport.Tracker() as tracker:
        function(x).sum()
        tracker.step()
        result = function(x)
        result.sum()
        assert tracker.usage()["cpu"].get("other", 0) >= result.untyped_storage().nbytes()


@pytest.mark.parametrize("capture", ["operators", "allocator"])
def test_dynamo_never_compiles_code_of_the_tracker(capture: str) -> None:
    """Where it gives a frame of the program up, and looks at all that is called from there."""
    backend = torch._dynamo.testing.CompileCounter()  # runs graphs as they are
    layer = nn.Linear(8, 8)
    layer.compile(backend=backend)  # torch does not compile modules of its own by themselves
    model = nn.Sequential(layer, nn.Linear(8, 8))
    with memexport.Tracker(model, capture=capture) as tracker:  # type: ignore[arg-type]  # either literal
        for _ in range(12):
            model(torch.randn(2, 8)).sum().backward()
            tracker.step()
    assert backend.frame_count == 0
    assert not any("stopped" in warning for warning in tracker.summary().warnings)
    assert "0" in {row.module for row in tracker.summary().top_operators}
