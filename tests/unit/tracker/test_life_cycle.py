"""Start, stop, and everything that may go wrong between: training must not notice."""

from __future__ import annotations

import copy
import gc
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import CollectingExporter, operators, record
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import memexport
from memexport.errors import OutputError, UsageError
from memexport.model import EventBatch, EventKind, RecordingEnd
from memexport.tracker import stream


def traces_left() -> list[Any]:
    """Whatever of a tracker is still in the process."""
    return [
        *_get_current_dispatch_mode_stack(),
        *hooks._global_forward_pre_hooks.values(),
        *hooks._global_forward_hooks.values(),
        *optimizer_hooks._global_optimizer_pre_hooks.values(),
        *optimizer_hooks._global_optimizer_post_hooks.values(),
        *(thread for thread in threading.enumerate() if thread.name.startswith("memexport")),
    ]


def train(model: nn.Module, steps: int = 3) -> list[float]:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))


def test_training_computes_the_same_with_and_without() -> None:
    plain = train(small_model())
    model = small_model()
    with memexport.Tracker(model):
        tracked = train(model)
    assert tracked == plain


def test_nothing_is_left_afterwards(tmp_path: Path) -> None:
    model = small_model()
    with memexport.Tracker(model, exporters=[tmp_path / "run.memx"]):
        assert traces_left()
        train(model)
    assert traces_left() == []


def test_nothing_is_left_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), memexport.Tracker():
        _ = 1 / 0
    assert traces_left() == []


def test_the_tracker_keeps_no_model_tensor_or_optimizer_alive() -> None:
    tracker = memexport.Tracker()
    model = small_model()
    with tracker:
        train(model)
        alive = [weakref.ref(model), *(weakref.ref(p) for p in model.parameters())]
        del model
        gc.collect()
        assert [ref() for ref in alive] == [None] * len(alive)
    assert tracker.summary().to_dict()["operators"] > 0


def test_parameters_can_be_swapped_while_they_are_tracked() -> None:
    model = nn.Linear(4, 4)
    with memexport.Tracker(model):
        train(model, steps=1)
        model.weight.grad = model.bias.grad = None
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(4, 4)))
    assert model.weight.sum() == 16


def test_a_tracker_can_record_again() -> None:
    tracker = memexport.Tracker()
    for count in (1, 2):
        with tracker:
            for _ in range(count):
                torch.ones(3)
        assert tracker.summary().to_dict()["operators"] == count


def test_a_running_tracker_cannot_be_started_again() -> None:
    with memexport.Tracker() as tracker, pytest.raises(UsageError, match="recording already"):
        tracker.start()


def test_stopping_twice_or_before_the_start_does_nothing() -> None:
    tracker = memexport.Tracker()
    tracker.stop()
    tracker.start()
    tracker.stop()
    tracker.stop()
    assert traces_left() == []


def test_a_mode_that_is_entered_later_and_left_later_stays_whole() -> None:
    class Later(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    tracker, later = memexport.Tracker(), Later()
    tracker.start()
    later.__enter__()
    tracker.stop()
    torch.ones(1)
    assert _get_current_dispatch_mode_stack() == [later]
    later.__exit__(None, None, None)
    assert later.count == 1
    assert traces_left() == []


def test_two_trackers_at_once_both_see_everything() -> None:
    inner, outer = CollectingExporter(), CollectingExporter()
    model = small_model()
    with memexport.Tracker(model, exporters=[outer]), memexport.Tracker(model, exporters=[inner]):
        train(model)
    names = [[(e.name, e.module) for e in operators(x.events())] for x in (inner, outer)]
    assert names[0] == names[1] != []


def test_a_summary_can_be_asked_for_while_recording() -> None:
    with memexport.Tracker() as tracker:
        kept = torch.ones(1000)
        assert tracker.summary().to_dict()["operators"] == 1
        before = tracker.usage()["cpu"]["total"]
        del kept
        assert tracker.usage()["cpu"]["total"] == before - 4000
        assert tracker.usage("peak")["cpu"]["total"] == before


def test_what_was_never_recorded_has_no_summary() -> None:
    with pytest.raises(UsageError, match="nothing has been recorded"):
        memexport.Tracker().summary()
    with memexport.Tracker() as tracker, pytest.raises(UsageError, match="'often'"):
        tracker.usage("often")


def test_wrong_arguments_are_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"run\.xyz"):
        memexport.Tracker(exporters=["run.xyz"])
    with pytest.raises(UsageError, match="a list"):
        memexport.Tracker(exporters="run.memx")
    with pytest.raises(UsageError, match="more than 0"):
        memexport.Tracker(flush_interval=0)


def test_an_output_that_cannot_be_opened_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    tracker = memexport.Tracker(exporters=[tmp_path / "good.memx", tmp_path / "missing" / "bad.memx"])
    with pytest.raises(OutputError, match="missing"):
        tracker.start()
    assert traces_left() == []


class FailingExporter(CollectingExporter):
    """Writes one batch, then the disk is full."""

    aborted = False

    def write(self, batch: EventBatch) -> None:
        if self.batches:
            raise OSError("No space left on device")
        super().write(batch)

    def abort(self) -> None:
        self.aborted = True


def test_an_exporter_that_fails_costs_a_warning_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    failing, healthy = FailingExporter(), CollectingExporter()
    with memexport.Tracker(exporters=[failing, healthy]) as tracker:
        torch.ones(1)
        tracker.summary()
        torch.ones(2)
        tracker.summary()
        torch.ones(3)
    assert failing.aborted
    assert len(operators(healthy.events())) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left" in tracker.summary().to_dict()["warnings"][0]


class StuckExporter(CollectingExporter):
    """Hangs until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def write(self, batch: EventBatch) -> None:
        self.go_on.wait(30)
        super().write(batch)


def test_an_exporter_that_hangs_does_not_hold_up_training_and_drops_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "_QUEUED_BATCHES", 3)
    exporter = StuckExporter()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        started = time.monotonic()
        for _ in range(20):
            torch.ones(1)
            tracker.summary()  # a batch each
        assert time.monotonic() - started < 10
        assert tracker.summary().to_dict()["operators"] == 20
        exporter.go_on.set()
    assert exporter.finished is not None
    dropped = exporter.finished.dropped_events
    assert dropped > 0
    assert sum(map(len, exporter.batches)) + dropped == tracker.summary().to_dict()["events"]


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("deliberate")


@pytest.mark.parametrize(
    ("owner", "method"),
    [
        ("dispatch.OperatorLog", "_look_through"),
        ("dispatch.OperatorLog", "_operator"),
        ("running.Running", "context"),
        ("running.Running", "module_starts"),
        ("running.Running", "module_ends"),
        ("running.Running", "optimizer_starts"),
        ("running.Running", "optimizer_ends"),
        ("assemble.Assembler", "batch"),
        ("held.HeldRows", "add"),
        ("assemble.Assembler", "last_batch"),
    ],
)
def test_an_error_of_our_own_stops_recording_and_not_the_program(
    owner: str, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = train(small_model())
    exporter = CollectingExporter()
    monkeypatch.setattr(f"memexport.tracker.{owner}.{method}", broken)
    with memexport.Tracker(exporters=[exporter]) as tracker:
        assert [part.sum() for part in torch.ones(4).split(2)] == [2, 2]
        assert train(small_model()) == plain
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "deliberate" in tracker.summary().to_dict()["warnings"][0]
    assert exporter.finished is not None
    assert traces_left() == []


def lstm() -> None:
    result, _ = nn.LSTM(4, 8, 2)(torch.ones(3, 2, 4))
    result.sum().backward()


def mixed_precision() -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(2, 4)).float().sum()
    loss.backward()


def function_transforms() -> None:
    torch.vmap(lambda x: x.sin() * 2)(torch.ones(3, 4))
    torch.func.hessian(lambda x: (x**3).sum())(torch.ones(3))


def sparse_gradients() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


def script_modules() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    scripted(torch.ones(1, 3)).sum().backward()


def nested_tensors() -> None:
    torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged) * 2


def inference_mode() -> None:
    with torch.inference_mode():
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()(torch.ones(1, 3, 8))


def state_dicts() -> None:
    model = nn.Linear(3, 3)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    model.load_state_dict(torch.load(stream))
    copy.deepcopy(model).to(torch.float64)


def lazy_modules() -> None:
    nn.LazyLinear(3)(torch.ones(2, 5)).sum().backward()


def threads_of_the_users_own() -> None:
    model = nn.Linear(3, 3)
    threads = [threading.Thread(target=lambda: model(torch.ones(1, 3)).sum().backward()) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "work",
    [
        lstm,
        mixed_precision,
        function_transforms,
        sparse_gradients,
        script_modules,
        nested_tensors,
        inference_mode,
        state_dicts,
        lazy_modules,
        threads_of_the_users_own,
    ],
)
def test_whatever_torch_can_do_it_can_do_under_a_tracker(work: Callable[[], None]) -> None:
    with memexport.Tracker() as tracker:
        work()
    summary = tracker.summary().to_dict()
    assert summary["warnings"] == []
    assert summary["operators"] > 0 or work is threads_of_the_users_own


def test_what_was_written_is_there_after_a_kill(tmp_path: Path) -> None:
    script = """
import sys, time, torch, memexport
with memexport.Tracker(exporters=[sys.argv[1]], flush_interval=0.1):
    for _ in range(100):
        torch.ones(7)
    time.sleep(0.6)
    print("flushed", flush=True)
    time.sleep(60)
"""
    path = tmp_path / "killed.memx"
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"flushed\n"
    process.kill()
    process.wait()
    with memexport.open(path) as recording:
        events = EventBatch.concat(list(recording.batches()))
        assert int((events.kind == EventKind.OPERATOR).sum()) == 100
        assert any("cut" in warning for warning in recording.end().warnings)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform does not fork")
def test_a_forked_child_records_nothing_and_leaves_the_file_to_its_parent(tmp_path: Path) -> None:
    script = """
import os, sys, torch, memexport
with memexport.Tracker(exporters=[sys.argv[1]]) as tracker:
    torch.ones(5)
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
    else:
        torch.ones(6)
if child:
    sys.exit(os.waitstatus_to_exitcode(status))
assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
"""
    path = tmp_path / "forked.memx"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
    with memexport.open(path) as recording:
        assert recording.summary().to_dict()["operators"] == 1
        assert recording.end().warnings == ()


def test_operators_of_several_autograd_threads_are_recorded_under_their_thread() -> None:
    def work(_: memexport.Tracker) -> None:
        losses = [torch.ones(3, requires_grad=True).exp().sum() for _ in range(2)]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        for thread in threads:
            thread.start()
            thread.join()

    # The threads were not started by the tracker's thread, so torch does not show it their operators.
    assert {e.thread for e in operators(record(work))} == {"MainThread"}


def test_an_interrupt_from_the_keyboard_ends_the_recording_properly(tmp_path: Path) -> None:
    script = """
import sys, time, torch, memexport
with memexport.Tracker(exporters=[sys.argv[1]]):
    torch.ones(5)
    print("ready", flush=True)
    time.sleep(60)
"""
    path = tmp_path / "interrupted.memx"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.wait(30)
    with memexport.open(path) as recording:
        summary = recording.summary().to_dict()
    assert "exception: KeyboardInterrupt" in [marker["name"] for marker in summary["markers"]]
    assert summary["warnings"] == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_gives_the_same_result(backend: str) -> None:
    torch._dynamo.reset()
    model = small_model().eval()
    compiled = torch.compile(model, backend=backend)
    x = torch.ones(2, 4)
    plain = model(x)
    with memexport.Tracker(model) as tracker:
        results = [compiled(x) for _ in range(3)]
        results[0].sum().backward()
    assert all(torch.equal(result, plain) for result in results)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # it does not compile without end
    assert tracker.summary().to_dict()["warnings"] == []


def test_higher_order_operators_run() -> None:
    with memexport.Tracker() as tracker:
        result = torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (torch.zeros(3),))
    assert result.sum() == 0
    assert tracker.summary().to_dict()["warnings"] == []


def test_an_exporter_of_live_recordings_can_ask_what_the_end_would_say_now() -> None:
    """Retries, failed requests and dropped events are known while training runs."""

    class Watching(CollectingExporter):
        def watch(self, progress: Callable[[], RecordingEnd]) -> None:
            self.progress = progress

    exporter = Watching()
    with memexport.Tracker(exporters=[exporter]) as tracker:
        torch.ones(4).sum()
        assert exporter.progress().dropped_events == 0
        tracker._running._export.dropped_events = 3
        assert exporter.progress().dropped_events == 3
    assert exporter.finished is not None
    assert exporter.finished.dropped_events == 3
