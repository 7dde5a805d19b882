"""Memory runs out: the error goes on as it was, with a note, and the last events are in a file."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from failing import CUDA_MESSAGE, TOO_MUCH, NoMemory, NoMemoryInBackward, no_memory, train, trained
from recorded import CollectingExporter
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import memexport
from memexport.errors import OutputError, UsageError
from memexport.tracker.oom import observer
from memexport.tracker.oom.report import HEADLINE, OomReport

TOO_MUCH_BYTES = 4 * TOO_MUCH


def failed(work: Callable[[], Any], **options: Any) -> BaseException:
    """The error with which `work` leaves a tracker."""
    with pytest.raises((RuntimeError, MemoryError)) as raised, memexport.Tracker(**options):
        work()
    return raised.value


def report_of(work: Callable[[], Any], *modules: nn.Module, **options: Any) -> OomReport:
    """What is told of the one request that failed."""
    reports: list[OomReport] = []
    with (
        pytest.raises((RuntimeError, MemoryError)),
        memexport.Tracker(*modules, on_oom=reports.append, **options),
    ):
        work()
    (report,) = reports
    return report


def too_much() -> torch.Tensor:
    return torch.empty(TOO_MUCH)


def on_cuda() -> torch.Tensor:
    return no_memory(torch.ones(1))


def in_backward() -> None:
    NoMemoryInBackward.apply(torch.ones(3, requires_grad=True)).sum().backward()


def outside_of_torch() -> None:
    raise MemoryError


@pytest.mark.parametrize("work", [too_much, on_cuda, in_backward, outside_of_torch])
def test_the_error_is_the_same_with_one_note_and_there_is_one_file(
    work: Callable[[], Any], tmp_path: Path
) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as plain:
        work()
    error = failed(work, on_oom=tmp_path)
    assert type(error) is type(plain.value)
    assert error.args == plain.value.args
    assert error.__context__ is error.__cause__ is None
    names = [
        frame.name
        for frame in traceback.extract_tb(error.__traceback__)
        if "memexport/" not in frame.filename
    ]
    assert names[1:] == [frame.name for frame in traceback.extract_tb(plain.value.__traceback__)[1:]]
    (note,) = error.__notes__
    (path,) = tmp_path.iterdir()
    assert path.name == f"oom-0-{os.getpid()}.memx"
    lines = note.splitlines()
    assert lines[0].startswith(HEADLINE)
    assert len(lines) <= 12
    assert max(len(line) for line in lines if str(path) not in line) <= 80
    assert lines[-1].endswith(f"memexport summary {path}")
    with memexport.open(path) as recording:
        summary = recording.summary().to_dict()
    assert summary["ooms"] == 1
    assert "oom" in [marker["name"] for marker in summary["markers"]]


def test_the_file_says_what_was_asked_for_by_whom_and_who_held_the_memory(tmp_path: Path) -> None:
    model, optimizer = trained()
    whole = nn.Sequential(model, NoMemory())

    def work() -> None:
        whole(torch.ones(8, 64))

    error = failed(work, on_oom=tmp_path / "deep" / "down", optimizer=optimizer)
    (path,) = (tmp_path / "deep" / "down").iterdir()
    with memexport.open(path) as recording:
        device = recording.summary().to_dict()["devices"]["cpu"]
        text = str(recording.summary())
    (request,) = device["failed_requests"]
    assert request["bytes"] == TOO_MUCH_BYTES
    assert request["operator"] == "aten.empty.memory_format"
    assert (request["module"], request["phase"]) == ("1", "forward")
    assert [Path(frame.split(":")[0]).name for frame in request["stack"]][-2:] == [
        Path(__file__).name,
        "failing.py",
    ]
    assert request["allocated_bytes"] == sum(request["categories"].values()) == device["allocated"]["end"]
    parameters = sum(4 * p.numel() for p in model.parameters())
    held = request["categories"]
    assert held["activation"] >= 8 * (128 + 16) * 4
    assert held["optimizer_state"] >= 2 * parameters
    assert {"module": "0.0", "bytes": 4 * (64 * 128 + 128)} in request["modules"]
    assert "4.00 PiB requested" in text
    assert "in aten.empty.memory_format of 1 (forward)" in " ".join(text.split())
    assert "in          aten.empty.memory_format of 1 (forward, step 0)" in error.__notes__[0]


def test_an_error_that_the_program_handles_is_told_too_and_each_once(tmp_path: Path) -> None:
    with memexport.Tracker(on_oom=tmp_path) as tracker:
        for _ in range(2):
            with pytest.raises(RuntimeError) as raised:
                too_much()
            assert len(raised.value.__notes__) == 1
        torch.ones(3)
    assert [marker.name for marker in tracker.summary().markers].count("oom") == 2
    assert tracker.summary().ooms == 2
    stem = f"oom-0-{os.getpid()}"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{stem}-2.memx", f"{stem}.memx"]


def test_a_program_that_tries_for_ever_does_not_fill_the_disk(tmp_path: Path) -> None:
    with memexport.Tracker(on_oom=tmp_path / "oom.memx"):
        notes = []
        for _ in range(8):
            with pytest.raises(RuntimeError) as raised:
                too_much()
            notes += raised.value.__notes__
    assert len(list(tmp_path.iterdir())) == 5
    assert len(notes) == 8
    assert notes[-1] == f"{HEADLINE}; only the first 5 times are reported"


def test_of_several_trackers_the_first_to_see_it_tells(tmp_path: Path) -> None:
    with (
        memexport.Tracker(on_oom=tmp_path),
        memexport.Tracker(on_oom=tmp_path),
        pytest.raises(RuntimeError) as raised,
    ):
        too_much()
    assert len(raised.value.__notes__) == len(list(tmp_path.iterdir())) == 1


def test_what_is_made_anew_on_its_way_gets_the_same_note_and_no_second_file(tmp_path: Path) -> None:
    def work() -> None:
        with contextlib.suppress(torch.OutOfMemoryError):
            on_cuda()
        raise torch.OutOfMemoryError(CUDA_MESSAGE)

    error = failed(work, on_oom=tmp_path)
    (path,) = tmp_path.iterdir()
    assert str(path) in error.__notes__[0]


def test_nothing_of_the_program_is_kept_alive(tmp_path: Path) -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def work() -> None:
        large = torch.ones(1000)
        kept.append(weakref.ref(large))
        no_memory(large)

    gc.disable()
    try:
        with memexport.Tracker(on_oom=tmp_path) as tracker:
            with contextlib.suppress(torch.OutOfMemoryError):
                work()
            assert kept[0]() is None
            before = tracker.usage()["cpu"]["total"]
        assert before == tracker.usage()["cpu"]["total"]
    finally:
        gc.enable()


class Watching(TorchDispatchMode):
    """Notes what is dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_tensor_is_made_while_an_error_is_handled(tmp_path: Path) -> None:
    model, optimizer = trained()
    with Watching() as watching, memexport.Tracker(model, optimizer=optimizer, on_oom=tmp_path):
        train(model, optimizer, 1)
        before = len(watching.operators)
        with pytest.raises(RuntimeError):
            too_much()
        assert watching.operators[before:] == ["aten.empty.memory_format"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_function_gets_a_report_and_may_save_the_recording(tmp_path: Path) -> None:
    model, optimizer = trained()
    report = report_of(in_backward, model, optimizer=optimizer)
    assert (report.request_bytes, report.device, report.device_free_bytes) == (TOO_MUCH_BYTES, "cpu", None)
    assert (report.operator, report.module, report.phase) == ("aten.empty.memory_format", None, "backward")
    assert Path(report.stack[-1].split(":")[0]).name == "failing.py"
    assert report.held.categories["parameter"] >= sum(4 * p.numel() for p in model.parameters())
    assert report.counters.allocated == sum(report.held.categories.values())
    assert report.fragmentation_bytes is report.path is None
    assert "written" not in str(report)
    assert report.save(tmp_path / "mine.jsonl") == report.path
    assert '"name":"oom"' in (tmp_path / "mine.jsonl").read_text().replace(" ", "")


def test_who_called_is_told_by_stack_where_stacks_are_recorded() -> None:
    kept = []

    def work() -> None:
        kept.append(torch.ones(5000))
        too_much()

    held = report_of(work, record_stacks=True).held.stacks
    (mine,) = (row for row in held if row.stack and "test_oom_recorder.py" in row.stack[-1])
    assert mine.bytes == 20_000


def test_where_an_accelerator_says_what_it_refused_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    observers: list[Any] = []
    attach = observers.append
    monkeypatch.setattr(torch._C, "_cuda_attachOutOfMemoryObserver", attach, raising=False)
    monkeypatch.setattr(observer, "_attached", set())
    observer.attach("cuda")
    observer.attach("cuda")
    (observe,) = observers
    gib = 1 << 30

    def work() -> None:
        observe(0, 2 * gib + 4096, 80 * gib, gib + 77)
        on_cuda()

    report = report_of(work)
    assert (report.request_bytes, report.device_free_bytes) == (2 * gib + 4096, gib + 77)
    assert report.device == "cuda:0"
    assert report.held_on == "cpu"
    # What it told of another request does not count.
    assert report_of(lambda: [observe(1, 2 * gib, 0, 7), on_cuda()]).device_free_bytes == gib + gib // 4
    assert report_of(lambda: [observe(0, 5 * gib, 0, 7), on_cuda()]).request_bytes == 2 * gib


def test_a_torch_without_observers_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(observer, "_attached", set())
    observer.attach("nothing")
    monkeypatch.setattr(torch._C, "_cuda_attachOutOfMemoryObserver", refuse, raising=False)
    observer.attach("cuda")


def broken(*_: Any, **__: Any) -> Any:
    raise OSError("deliberate")


@pytest.mark.parametrize(
    "target",
    [
        "recorder.OomRecorder._write",
        "recorder.OomRecorder._with_live",
        "rows.RequestLog.log",
        "recorder.stack_of",
        "target.Target.next_path",
        "recorder.request_of",
    ],
)
def test_an_error_of_our_own_is_logged_once_and_goes_no_further(
    target: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(f"memexport.tracker.oom.{target}", broken)
    with memexport.Tracker(on_oom=tmp_path):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
                too_much()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].exc_info is None


def test_a_function_that_fails_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    error = failed(too_much, on_oom=broken)
    assert error.__notes__[0].startswith(HEADLINE)
    assert len(caplog.records) == 1


def test_the_environment_asks_every_tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMEXPORT_OOM", str(tmp_path / "{pid}"))
    with pytest.raises(RuntimeError), memexport.Tracker() as tracker:
        torch.ones(3)
        too_much()
    assert len(list((tmp_path / str(os.getpid())).iterdir())) == 1
    assert tracker.summary().warnings == ()  # all that was recorded, not the last events alone


@pytest.mark.parametrize("place", ["s3://bucket/oom", "{nonsense}", f"{__file__}/x"])
def test_a_place_that_the_environment_names_wrongly_costs_a_warning(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MEMEXPORT_OOM", place)
    with memexport.Tracker():
        torch.ones(1)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "MEMEXPORT_OOM" in caplog.text


def test_what_cannot_work_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="URL"):
        memexport.Tracker(on_oom="s3://bucket/oom")
    with pytest.raises(UsageError, match="placeholder"):
        memexport.Tracker(on_oom="{nonsense}")
    with pytest.raises(UsageError, match="more than 0"):
        memexport.Tracker(on_oom=tmp_path, oom_events=0)
    for options in ({"fake": True}, {"capture": "allocator"}):
        with pytest.raises(UsageError, match="on_oom"):
            memexport.Tracker(on_oom=tmp_path, **options)
    with pytest.raises(OutputError, match="no folder"):
        memexport.Tracker(on_oom=f"{__file__}/below").start()
    with memexport.Tracker():
        pass  # the one above left nothing behind


def test_a_recording_that_is_written_anyway_says_what_failed_too(tmp_path: Path) -> None:
    exporter = CollectingExporter()
    failed(too_much, on_oom=tmp_path, exporters=[exporter, tmp_path / "run.memx"])
    (marker,) = (event for event in exporter.events() if event.name == "oom")
    assert (marker.size_bytes, marker.device) == (TOO_MUCH_BYTES, "cpu")
    assert len(list(tmp_path.iterdir())) == 2


def test_without_on_oom_the_end_of_the_recording_says_it(tmp_path: Path) -> None:
    error = failed(too_much, exporters=[tmp_path / "run.memx"])
    assert not hasattr(error, "__notes__")
    with memexport.open(tmp_path / "run.memx") as recording:
        summary = recording.summary().to_dict()
    (request,) = summary["devices"]["cpu"]["failed_requests"]
    assert request["bytes"] == TOO_MUCH_BYTES
    assert summary["ooms"] == 1


def test_between_recorded_steps_what_lives_is_found_out_when_memory_runs_out(tmp_path: Path) -> None:
    model, optimizer = trained()
    reports: list[OomReport] = []
    with (
        pytest.raises(MemoryError),
        memexport.Tracker(model, optimizer=optimizer, on_oom=reports.append, every=100) as tracker,
    ):
        train(model, optimizer, 5, tracker.step)
        kept = torch.ones(123_456)
        raise MemoryError
    held = reports[0].held.categories
    assert held["unattributed"] >= kept.numel() * 4
    assert held["parameter"] >= sum(4 * p.numel() for p in model.parameters())


def test_two_threads_that_run_out_at_once_are_both_told(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        with memexport.Tracker(on_oom=tmp_path):
            try:
                too_much()
            except RuntimeError as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(error.__notes__) for error in errors] == [1, 1]


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("is_on_cuda", [False, True], ids=["cpu", "cuda"])
def test_a_compiled_model_runs_out_of_memory_as_any(is_on_cuda: bool, tmp_path: Path) -> None:
    model = torch.compile(nn.Sequential(nn.Linear(64, 4), NoMemory(on_cuda=is_on_cuda)), backend="eager")
    error = failed(lambda: model(torch.ones(2, 64)), on_oom=tmp_path)
    assert len(error.__notes__) == len(list(tmp_path.iterdir())) == 1
