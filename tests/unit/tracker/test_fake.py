"""A program runs on simulated tensors: on the device that it names, to its end, and leaves nothing behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorded import CollectingExporter, operators
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

import memexport
from memexport.demo import SmallTransformer, training_step
from memexport.errors import UsageError
from memexport.model import EventKind, Phase

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def simulated(work: Callable[[], Any], **options: Any) -> tuple[Any, memexport.Tracker]:
    """What `work` gives under a simulation, and its tracker."""
    with memexport.Tracker(fake=True, **options) as tracker:
        result = work()
    return result, tracker


def on_cuda(work: Callable[[], Any]) -> Any:
    return simulated(work, device="cuda")[0]


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))


# ---- without an accelerator


def test_a_model_far_too_large_for_this_machine_is_trained() -> None:
    def train() -> None:
        model = nn.Linear(1_000_000, 1_000_000)
        optimizer = torch.optim.SGD(model.parameters())
        model(torch.randn(2, 1_000_000)).sum().backward()
        optimizer.step()

    peak = simulated(train)[1].usage("peak")["cpu"]
    assert peak["parameter"] == 4 * (10**12 + 10**6)
    assert peak["total"] > 8 * 10**12


def test_a_model_that_was_made_before_can_be_estimated_and_is_not_changed() -> None:
    model = small_model()
    before = [p.clone() for p in model.parameters()]
    with memexport.Tracker(model, fake=True) as tracker:
        model(torch.randn(2, 8)).sum()
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert tracker.usage("peak")["cpu"]["parameter"] == sum(p.numel() * 4 for p in model.parameters())


def test_values_that_are_read_are_made_up_and_that_is_said() -> None:
    def read() -> list[Any]:
        loss = small_model()(torch.randn(2, 8)).sum()
        return [loss.item(), float(loss), int(loss.long()), bool(loss > 0), loss.detach().numpy().shape]

    values, tracker = simulated(read)
    assert values == [1.0, 1.0, 1, False, ()]
    (warning,) = tracker.summary().to_dict()["warnings"]
    assert "values were read 4 times" in warning
    assert "test_fake.py:" in warning
    assert simulated(read, fake_value=0.5)[0][:3] == [0.5, 0.5, 0]


def test_small_values_that_follow_from_nothing_are_known() -> None:
    def read() -> list[Any]:
        rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        counts = torch.tensor([1, 2, 3]) * 2
        return [
            rates,
            counts.tolist(),
            sorted(torch.randperm(3).tolist()),
            torch.zeros(2).long().sum().item(),
        ]

    values, tracker = simulated(read)
    assert values[:3] == [[0.0, 0.5, 1.0], [2, 4, 6], [0, 1, 2]]
    assert "values were read 1 times" in tracker.summary().to_dict()["warnings"][0]


def test_shapes_that_depend_on_values_are_the_largest_possible_and_that_is_said() -> None:
    def select() -> list[Any]:
        x = torch.randn(3, 4)
        return [part.shape for part in (x.nonzero(), x[x > 0], x.masked_select(x > 0), x.unique())]

    shapes, tracker = simulated(select)
    assert shapes == [(12, 2), (12,), (12,), (12,)]
    assert "shapes depend on values 4 times" in tracker.summary().to_dict()["warnings"][0]


def test_what_cannot_be_simulated_says_what_and_where() -> None:
    counts = torch.tensor([2, 3])
    with pytest.raises(UsageError, match=r"aten\.repeat_interleave.*test_fake\.py:\d+"):
        simulated(lambda: torch.randn(2, 3).repeat_interleave(torch.randint(9, (2,)), 0))
    assert counts.sum() == 5


def test_parameters_change_their_dtype() -> None:
    model, _ = simulated(lambda: small_model().to(torch.bfloat16))
    assert next(model.parameters()).dtype is torch.bfloat16


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), float(index)), index


@pytest.mark.parametrize("workers", [0, 1])
def test_data_is_loaded_for_real(workers: int) -> None:
    def load() -> list[int]:
        model, seen = small_model(), []
        for batch, index in DataLoader(Squares(), batch_size=4, shuffle=True, num_workers=workers):
            model(batch).sum().backward()
            seen += index.tolist()
        return seen

    assert sorted(simulated(load)[0]) == list(range(10))


def test_simulated_data_is_loaded_too() -> None:
    def load() -> list[Any]:
        loader = DataLoader(TensorDataset(torch.randn(10, 3)), batch_size=4, shuffle=True, pin_memory=True)
        return [batch.shape for (batch,) in loader]

    assert on_cuda(load) == [(4, 3), (4, 3), (2, 3)]


def test_nothing_is_saved_and_that_is_said(tmp_path: Any) -> None:
    path = tmp_path / "model.pt"
    _, tracker = simulated(lambda: torch.save(small_model().state_dict(), path))
    assert not path.exists()
    assert "not saved" in tracker.summary().to_dict()["warnings"][0]


def test_a_compiled_model_is_estimated_as_it_runs_uncompiled() -> None:
    def run() -> None:
        torch.compile(small_model())(torch.randn(2, 8)).sum().backward()

    exporter = CollectingExporter()
    simulated(run, exporters=[exporter])
    assert "aten.addmm.default" in {event.name for event in operators(exporter.events())}


# ---- the simulated accelerator


def test_a_program_that_never_speaks_of_cuda_runs_there_as_a_whole() -> None:
    def train() -> Any:
        model = SmallTransformer(32)
        optimizer = torch.optim.AdamW(model.parameters())
        training_step(model, optimizer)
        return model

    model, tracker = simulated(train, device="cuda")
    assert {str(parameter.device) for parameter in model.parameters()} == {"cuda:0"}
    peaks = {name: usage["total"] for name, usage in tracker.usage("peak").items()}
    assert peaks["cuda:0"] > 400_000
    assert peaks["cpu"] < 1000  # counters of steps


def test_a_program_that_speaks_of_cuda_decides_what_goes_there() -> None:
    def place() -> list[Any]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, host = small_model(), torch.randn(2, 8)
        model.to(device)
        tensors = [model[0].weight, host, host.to(device), model(host.cuda())]
        return [(tensor.device.type, tensor.is_cuda) for tensor in tensors]

    assert on_cuda(place) == [("cuda", True), ("cpu", False), ("cuda", True), ("cuda", True)]


def test_what_is_there_already_is_not_copied() -> None:
    def move() -> list[bool]:
        x = torch.randn(3, device="cuda")
        moves = [x.to("cuda"), x.cuda(), x.to(torch.device("cuda")), x.to(x), x.to("cuda", torch.float32)]
        return [moved is x for moved in moves] + [x.cpu() is x, x.to("cuda", copy=True) is x]

    assert on_cuda(move) == [True] * 5 + [False, False]


def test_gradients_are_where_their_tensors_are() -> None:
    def differentiate() -> list[str]:
        host = torch.randn(3, device="cpu", requires_grad=True)
        there = torch.randn(3, device="cuda", requires_grad=True)
        cast = torch.randn(3, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        (host.cuda() * there).cpu().sum().backward()
        cast.float().pow(2).sum().backward()
        indexed = torch.randn(3, device="cuda", requires_grad=True)
        indexed[torch.tensor([0, 1])].sum().backward()
        return [x.grad.device.type for x in (host, there, cast, indexed) if x.grad is not None]

    assert on_cuda(differentiate) == ["cpu", "cuda", "cuda", "cuda"]


def test_autocast_casts_as_on_cuda() -> None:
    def run() -> list[torch.dtype]:
        linear, norm = nn.Linear(8, 8).cuda(), nn.LayerNorm(8).cuda()
        x = torch.randn(2, 8, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            low = linear(x)
            high = norm(low)
            loss = functional.mse_loss(linear(high), x)
        loss.backward()
        return [low.dtype, high.dtype, loss.dtype, linear.weight.grad.dtype]

    low, high = torch.float16, torch.float32
    assert on_cuda(run) == [low, high, high, high]
    with torch.no_grad():
        assert on_cuda(lambda: run_forward()) is low


def run_forward() -> torch.dtype:
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
        return nn.Linear(8, 8).cuda()(torch.randn(2, 8, device="cuda")).dtype


def test_a_gradient_scaler_steps() -> None:
    def train() -> Any:
        model = nn.Linear(8, 8).cuda()
        optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
        scaler.scale(model(torch.randn(2, 8).cuda()).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return len(optimizer.state)

    assert on_cuda(train) == 2


def test_optimizers_work_on_lists_as_on_cuda() -> None:
    def train() -> None:
        model = nn.Linear(64, 64)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, 64)).sum().backward()
        optimizer.step()

    exporter = CollectingExporter()
    simulated(train, device="cuda", exporters=[exporter])
    assert "aten._foreach_sqrt.default" in {event.name for event in operators(exporter.events())}


@pytest.mark.parametrize(
    ("dtype", "options", "operator"),
    [
        (torch.bfloat16, {"is_causal": True}, "_scaled_dot_product_flash_attention"),
        (torch.bfloat16, {"dropout_p": 0.1}, "_scaled_dot_product_flash_attention"),
        (torch.float32, {}, "_scaled_dot_product_efficient_attention"),
        (torch.bfloat16, {"attn_mask": True}, "_scaled_dot_product_efficient_attention"),
    ],
)
def test_attention_keeps_what_cudas_kernels_keep(
    dtype: torch.dtype, options: dict[str, Any], operator: str
) -> None:
    def attend() -> None:
        query = torch.randn(2, 4, 16, 20, dtype=dtype, device="cuda", requires_grad=True)
        if "attn_mask" in options:
            options["attn_mask"] = torch.ones(16, 16, dtype=torch.bool, device="cuda")
        functional.scaled_dot_product_attention(query, query, query, **options).sum().backward()
        assert query.grad is not None
        assert query.grad.shape == query.shape

    exporter = CollectingExporter()
    simulated(attend, device="cuda", exporters=[exporter])
    names = [event.name for event in operators(exporter.events())]
    assert f"aten.{operator}.default" in names
    assert f"aten.{operator}_backward.default" in names


def test_what_is_run_again_in_backward_is_on_the_device() -> None:
    def train() -> None:
        inner = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True).cuda()
        x = torch.randn(2, 4, 16, device="cuda", requires_grad=True)
        checkpoint(
            lambda y: inner(y) + torch.ones(16, device="cuda"), x, use_reentrant=False
        ).sum().backward()

    exporter = CollectingExporter()
    simulated(train, device="cuda", exporters=[exporter])
    again = [e for e in operators(exporter.events()) if e.phase is Phase.RECOMPUTE and e.size_bytes]
    assert {event.device for event in again} == {"cuda:0"}


def test_cuda_answers_like_a_device() -> None:
    def ask() -> list[Any]:
        cuda = torch.cuda
        stream = cuda.Stream()
        with cuda.stream(stream), cuda.device(0):
            event = cuda.Event(enable_timing=True)
            event.record()
        cuda.synchronize()
        cuda.empty_cache()
        cuda.manual_seed_all(0)
        kept = torch.ones(1000, device="cuda")
        generator = torch.Generator(device="cuda")
        assert isinstance(torch.default_generator, torch.Generator)
        return [
            cuda.is_available(),
            cuda.device_count(),
            cuda.current_device(),
            cuda.get_device_properties(0).total_memory,
            cuda.memory_allocated() - kept.numel() * 4,
            cuda.max_memory_reserved(),
            cuda.mem_get_info()[1],
            event.elapsed_time(event),
            isinstance(generator, torch.Generator),
        ]

    answers, _ = simulated(ask, device="cuda", budget="1GiB")
    assert answers == [True, 1, 0, 1 << 30, 96, 2 << 20, 1 << 30, 1.0, True]


def test_counters_are_the_allocators_and_are_marked_as_estimates() -> None:
    exporter = CollectingExporter()

    def allocate() -> None:
        kept = [torch.ones(100, device="cuda") for _ in range(3)]
        kept.pop()

    _, tracker = simulated(allocate, device="cuda", exporters=[exporter])
    summary = tracker.summary().to_dict()
    device = summary["devices"]["cuda:0"]
    assert device["allocated"]["peak"] == 3 * 512
    assert device["reserved"] == {"start": 0, "peak": 2 << 20, "end": 2 << 20}
    assert device["categories_at_peak"]["unattributed"] == 3 * 112
    assert exporter.info.options["estimated"] == "allocated, active, reserved"
    assert "estimates" in summary["warnings"][0]


def test_the_allocators_settings_are_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = "roundup_power2_divisions:2,expandable_segments:True"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    kept: list[torch.Tensor] = []
    _, tracker = simulated(lambda: kept.append(torch.empty(5_000_000, device="cuda")), device="cuda")
    summary = tracker.summary().to_dict()
    assert summary["devices"]["cuda:0"]["allocated"]["peak"] == 24 << 20
    assert "expandable_segments" in summary["warnings"][1]


# ---- the budget


def test_the_operator_that_exceeds_the_budget_is_named() -> None:
    def train() -> None:
        model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))
        model(torch.randn(2, 2048)).sum().backward()

    exporter = CollectingExporter()
    _, tracker = simulated(train, device="cuda", budget=40 << 20, exporters=[exporter])
    (sentence,) = tracker.exceeded()
    assert "would run out of 40.00 MiB in aten.mm.default of 2 (backward, step 0)" in sentence
    (marker,) = [e for e in exporter.events() if e.name == "out of budget"]
    assert marker.kind is EventKind.MARKER
    assert marker.size_bytes == 16 << 20
    assert marker.phase is Phase.BACKWARD
    summary = tracker.summary().to_dict()
    assert summary["warnings"][-1] == sentence
    assert (summary["alloc_retries"], summary["ooms"]) == (1, 1)


def test_a_budget_without_an_accelerator_is_the_hosts() -> None:
    _, tracker = simulated(lambda: torch.ones(1000, 1000), budget="3MiB")
    assert "cpu would run out of 3.00 MiB in aten.ones.default" in tracker.exceeded()[0]
    assert simulated(lambda: torch.ones(1000), budget="3MiB")[1].exceeded() == []


# ---- life cycle


def state() -> list[Any]:
    dynamo: Any = torch._dynamo.config
    return [
        torch.cuda.is_available(),
        torch.save,
        torch.Generator,
        functional.scaled_dot_product_attention,
        torch.Tensor.pin_memory,
        dynamo.disable,
        torch.overrides._get_current_function_mode_stack(),
        torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE),
        torch._subclasses.fake_tensor.CONSTANT_NUMEL_LIMIT,
        torch._C._get_mkldnn_enabled(),
        "is_cuda" in vars(torch._subclasses.FakeTensor),
        dict(os.environ),
        threading.active_count(),
    ]


@pytest.mark.parametrize("options", [{}, {"device": "cuda", "world_size": 4}])
def test_afterwards_everything_is_as_before(options: dict[str, Any]) -> None:
    import torch.distributed as dist

    before = [*state(), dist.init_process_group]
    simulated(small_model, **options)
    assert [*state(), dist.init_process_group] == before
    with pytest.raises(ZeroDivisionError):
        simulated(lambda: 1 / 0, **options)
    assert [*state(), dist.init_process_group] == before
    assert type(torch.ones(1)) is torch.Tensor


def test_an_output_that_cannot_be_opened_leaves_no_simulation(tmp_path: Any) -> None:
    before = state()
    tracker = memexport.Tracker(fake=True, device="cuda", exporters=[tmp_path / "missing" / "run.memx"])
    with pytest.raises(memexport.OutputError):
        tracker.start()
    assert state() == before


def test_a_mode_that_was_entered_later_stays() -> None:
    tracker = memexport.Tracker(fake=True).start()
    later = torch.device("meta")
    later.__enter__()
    tracker.stop()
    assert torch.ones(1).is_meta
    later.__exit__(None, None, None)
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "of a simulation"),
        ({"budget": "1GiB"}, "of a simulation"),
        ({"fake": True, "device": "tpu"}, "'tpu' cannot be simulated"),
        ({"fake": True, "world_size": 0}, "1 or more"),
        ({"fake": True, "budget": "much"}, "is no size"),
        ({"fake": True, "capture": "allocator"}, "simulation"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        memexport.Tracker(**options)


def test_tensors_that_outlive_their_simulation_do_not_end_the_process() -> None:
    model = on_cuda(lambda: nn.Linear(4, 4))
    result = model(model.weight)
    result.sum().backward()
    assert result.device.type == model.weight.grad.device.type == "cuda"


def test_copied_modules_belong_to_the_same_simulation() -> None:
    """`nn.TransformerEncoder` copies its layer. A copied mode would have its own references."""

    def train() -> torch.device:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3).cuda()
        result = model(torch.ones(2, 4, 16, device="cuda"))
        result.sum().backward()
        return result.device

    assert on_cuda(train) == torch.device("cuda", 0)
