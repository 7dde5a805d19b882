"""What is recorded of steps that a schedule names, and of the steps between."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import CollectingExporter, operators
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

import memexport
from memexport.analysis.live import LiveSet
from memexport.errors import UsageError
from memexport.model import Category, EventBatch, EventKind
from memexport.tracker import counters, windows
from memexport.tracker.counters import Counters, Reading


class Training:
    """A small model; every step is the same whenever it is made with the same number."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, number: int = 0) -> None:
        torch.manual_seed(number)
        self.model(torch.randn(4, 8)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def trained(
    count: int, **options: Any
) -> tuple[list[SimpleNamespace], CollectingExporter, memexport.Tracker]:
    """The events of so many steps, and what recorded them."""
    training, exporter = Training(), CollectingExporter()
    # Whatever else this process keeps alive is the same for every recording.
    gc.collect()
    with memexport.Tracker(training.model, exporters=[exporter], **options) as tracker:
        for number in range(count):
            training.step(number)
            tracker.step()
    return exporter.events(), exporter, tracker


def of_steps(
    events: list[SimpleNamespace], steps: set[int], first: int | None = None
) -> list[tuple[Any, ...]]:
    """What operators did in these steps, without times and addresses."""
    kinds = (EventKind.OPERATOR, EventKind.ALLOCATION, EventKind.RELEASE)
    return [
        (e.kind, e.step, e.name, e.module, e.phase, e.category, e.device, e.size_bytes, e.allocated_bytes)
        for e in events
        if e.step in steps and e.kind in kinds
    ]


def live_bytes(exporter: CollectingExporter) -> Iterator[tuple[int, int]]:
    """At each event of the CPU that has a counter: what is live by the events, and the counter."""
    batch, live = EventBatch.concat(exporter.batches), LiveSet()
    for position in range(len(batch)):
        live.add(batch, torch.tensor([position]).numpy())
        is_inside = batch.kind[position] in (
            EventKind.SAMPLE,
            EventKind.MARKER,
        )  # of an operator: more than lives
        if batch.device[position] == 0 and batch.allocated_bytes[position] >= 0 and not is_inside:
            yield int(live.live().columns["size_bytes"].sum()), int(batch.allocated_bytes[position])


def hooks() -> tuple[Any, ...]:
    """Everything that the tracker may put on the path of the program."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    return (
        len(_get_current_dispatch_mode_stack()),
        len(module._global_forward_hooks),
        len(module._global_forward_pre_hooks),
        len(module._global_parameter_registration_hooks),
        len(module._global_buffer_registration_hooks),
        len(optimizer._global_optimizer_pre_hooks),
        "resize_" in torch.UntypedStorage.__dict__,
    )


def named(events: list[SimpleNamespace], kind: EventKind, name: str) -> list[SimpleNamespace]:
    return [event for event in events if event.kind is kind and event.name == name]


def test_a_recorded_window_is_what_a_full_recording_has_of_its_steps() -> None:
    full, _, _ = trained(24)
    part, _, _ = trained(24, every=10, window=2)
    seen = {0, 1, 10, 11, 20, 21}
    everything = of_steps(full, seen)
    # Going on, the tracker says what died and what came to live meanwhile, before the first operator.
    first = {
        step: next(i for i, e in enumerate(part) if e.step == step and e.kind is EventKind.OPERATOR)
        for step in (10, 20)
    }
    resumed = {
        i for step, end in first.items() for i in range(end) if part[i].step == step and part[i].name is None
    }
    rest = [e for i, e in enumerate(part) if i not in resumed]
    assert of_steps(rest, seen) == everything


def test_outside_of_windows_no_operator_and_no_allocation_is_recorded() -> None:
    events, _, _ = trained(24, every=10, window=2)
    assert {e.step for e in operators(events)} == {0, 1, 10, 11, 20, 21}


def test_every_step_has_a_span_and_recorded_ones_a_marker() -> None:
    events, _, tracker = trained(24, every=10)
    spans = named(events, EventKind.SPAN, "step")
    assert [span.step for span in spans] == list(range(24))
    assert all(span.duration_ns > 0 for span in spans)
    assert all(a.time_unix_ns + a.duration_ns <= b.time_unix_ns for a, b in itertools.pairwise(spans))
    assert [marker.step for marker in named(events, EventKind.MARKER, "step")] == [0, 10, 20]
    assert tracker.summary().steps == 24


def test_a_pause_is_a_marker_and_a_span_up_to_where_recording_goes_on() -> None:
    events, _, _ = trained(24, every=10)
    markers = named(events, EventKind.MARKER, windows.NOT_RECORDED)
    spans = named(events, EventKind.SPAN, windows.NOT_RECORDED)
    assert [m.step for m in markers] == [1, 11, 21]
    assert [s.time_unix_ns for s in spans] == [m.time_unix_ns for m in markers]
    for span in spans:
        end = span.time_unix_ns + span.duration_ns
        assert not any(span.time_unix_ns < o.time_unix_ns < end for o in operators(events))


def test_what_is_live_adds_up_to_the_counter_at_every_event() -> None:
    kept: list[torch.Tensor] = []
    training, exporter = Training(), CollectingExporter()
    with memexport.Tracker(exporters=[exporter], every=6, window=2) as tracker:
        for number in range(20):
            training.step(number)
            kept.append(torch.ones(100 + number))  # comes and goes in windows and in pauses
            if number % 3 == 2:
                del kept[::2]
            tracker.step()
    sums = list(live_bytes(exporter))
    assert sums and all(live == counter for live, counter in sums)
    names = {e.name for e in exporter.events() if e.kind is EventKind.ALLOCATION and e.size_bytes == 412}
    assert names == {None}  # made in a pause, and found when recording went on


def test_what_died_in_a_pause_is_released_with_its_category_when_recording_goes_on() -> None:
    exporter, big = CollectingExporter(), nn.Linear(64, 64)
    parameters = sum(p.untyped_storage().nbytes() for p in big.parameters())
    with memexport.Tracker(big, exporters=[exporter], steps=[(0, 1), (3, 4)]) as tracker:
        tracker.step()
        before = tracker.usage()["cpu"]["parameter"]
        del big
        gc.collect()
        tracker.step()
        tracker.step()
        assert before - tracker.usage()["cpu"].get("parameter", 0) == parameters
    released = [
        e for e in exporter.events() if e.kind is EventKind.RELEASE and e.category is Category.PARAMETER
    ]
    assert sum(e.size_bytes for e in released) == parameters
    assert {e.step for e in released} == {3}


def test_what_lives_on_keeps_its_address_and_is_not_allocated_again() -> None:
    events, _, _ = trained(12, every=10)
    parameters = [e for e in events if e.kind is EventKind.ALLOCATION and e.category is Category.PARAMETER]
    assert len({e.address for e in parameters}) == len(parameters) == 4


def test_gradients_and_optimizer_state_made_in_a_pause_are_known_for_what_they_are() -> None:
    training, exporter = Training(), CollectingExporter()
    with memexport.Tracker(
        training.model, optimizer=training.optimizer, exporters=[exporter], steps=(3, 4)
    ) as tracker:
        for number in range(3):
            torch.manual_seed(number)
            training.model(torch.randn(4, 8)).sum().backward()
            training.optimizer.step()
            tracker.step()
        usage = tracker.usage()["cpu"]
    parameters = sum(p.nbytes for p in training.model.parameters())
    assert usage["gradient"] == usage["parameter"] == parameters
    assert usage["optimizer_state"] == 2 * parameters + 4 * 4  # Adam's, and a step count each


def test_a_storage_that_was_resized_in_a_pause_has_its_new_size() -> None:
    tensor, exporter = torch.empty(100, dtype=torch.uint8), CollectingExporter()
    with memexport.Tracker(exporters=[exporter], steps=[(0, 1), (2, 3)]) as tracker:
        tracker.step()
        tensor.untyped_storage().resize_(3000)
        tracker.step()
        torch.ones(1)
    sizes = [e.size_bytes for e in exporter.events() if e.kind is EventKind.ALLOCATION and e.step == 2]
    assert 3000 in sizes
    assert all(live == counter for live, counter in live_bytes(exporter))


def test_in_a_pause_nothing_of_ours_is_on_the_path_of_the_program() -> None:
    before = hooks()
    training = Training()
    with memexport.Tracker(training.model, every=4, step_at_optimizer=True) as tracker:
        seen = []
        for number in range(9):
            seen.append(hooks() == before)
            training.step(number)
        live = tracker._running._capture.storages.live  # type: ignore[union-attr]  # it records
        assert not live
    assert seen == [number % 4 != 0 for number in range(9)]
    assert hooks() == before


def test_after_stop_in_a_pause_or_in_a_window_nothing_is_left() -> None:
    from torch.optim.optimizer import _global_optimizer_post_hooks

    before, hooked = hooks(), len(_global_optimizer_post_hooks)
    for count in (4, 6):
        tensor = torch.ones(3)
        storage = weakref.ref(tensor.untyped_storage())
        training = Training()
        with memexport.Tracker(training.model, every=5) as tracker:
            for number in range(count):
                training.step(number)
                tracker.step()
        assert hooks() == before
        assert len(_global_optimizer_post_hooks) == hooked
        del tensor, tracker
        assert storage() is None


def test_in_a_pause_the_death_of_a_storage_calls_nothing() -> None:
    tensor = torch.ones(1000)
    with memexport.Tracker(steps=[(0, 1), (2, 3)]) as tracker:
        tracker.step()
        log = tracker._running._capture.log_bytes  # type: ignore[union-attr]  # it records
        refs = weakref.getweakrefs(tensor.untyped_storage())
        assert refs and all(ref.__callback__ is None for ref in refs)
        logged = len(log)
        del tensor
        assert len(log) <= logged


def test_the_optimizers_step_ends_steps_without_a_call_of_ours() -> None:
    training, exporter = Training(), CollectingExporter()
    with memexport.Tracker(exporters=[exporter], every=5, step_at_optimizer=True):
        for number in range(12):
            training.step(number)
    events = exporter.events()
    assert {e.step for e in operators(events)} == {0, 5, 10}
    assert len(named(events, EventKind.SPAN, "step")) == 12


def test_training_gives_the_same_results() -> None:
    def weights(record: Callable[[Training], None]) -> list[torch.Tensor]:
        training = Training()
        record(training)
        return [parameter.detach() for parameter in training.model.parameters()]

    def plain(training: Training) -> None:
        for number in range(30):
            training.step(number)

    def in_windows(training: Training) -> None:
        with memexport.Tracker(every=7, window=2, step_at_optimizer=True):
            plain(training)

    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(in_windows), strict=True))


def test_modes_of_the_program_that_come_and_go_across_pauses_stay_its_own() -> None:
    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    exporter = CollectingExporter()
    with Counting(), memexport.Tracker(exporters=[exporter], steps=[(0, 1), (2, 4)]) as tracker:
        tracker.step()
        with FlopCounterMode(display=False) as flops:
            tracker.step()  # recording goes on below this mode
            torch.ones(2, 2) @ torch.ones(2, 2)
        torch.ones(5)
        tracker.step()
        torch.ones(5)
    assert flops.get_total_flops() == 16
    assert Counting.calls > 3
    assert [e.name for e in operators(exporter.events())].count("aten.ones.default") == 4
    assert not _get_current_dispatch_mode_stack()


def test_a_step_that_ends_in_another_thread_waits_with_what_is_to_change() -> None:
    with memexport.Tracker(steps=(0, 1)) as tracker:
        thread = threading.Thread(target=tracker.step)
        thread.start()
        thread.join()
        assert len(_get_current_dispatch_mode_stack()) == 1
        tracker.step()
        assert not _get_current_dispatch_mode_stack()


def test_an_error_of_ours_when_recording_goes_on_stops_the_recording_and_not_the_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: bool) -> Iterator[torch.Tensor]:
        raise RuntimeError("broken")

    training = Training()
    with memexport.Tracker(training.model, every=3) as tracker:
        monkeypatch.setattr("memexport.tracker.registration.look_around", broken)
        for number in range(8):
            training.step(number)
            tracker.step()
        monkeypatch.undo()
    assert "memexport stopped recording" in caplog.text
    assert any("recording stopped before" in warning for warning in tracker.summary().warnings)
    assert not _get_current_dispatch_mode_stack()


def test_the_summary_and_the_file_say_how_many_steps_are_not_in_it() -> None:
    _, exporter, tracker = trained(24, every=10)
    assert exporter.finished is not None
    assert any("21 of 24 steps were not recorded in detail" in w for w in exporter.finished.warnings)
    assert any("21 of 24 steps" in warning for warning in tracker.summary().warnings)
    assert exporter.info.options["every"] == "10"


@pytest.mark.parametrize("options", [{"fake": True}, {"capture": "allocator"}], ids=["fake", "allocator"])
def test_what_needs_every_event_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="leave"):
        memexport.Tracker(every=10, **options)


class Allocator:
    """An accelerator's, with what a test says of it."""

    def __init__(self) -> None:
        self.reading = Reading(Counters(0, 0, 0), 0)
        self.calls = 0

    def read(self) -> Counters:
        return self.reading.counters

    def read_all(self) -> Reading:
        self.calls += 1
        return self.reading


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr(memexport.tracker, "_is_simulated", lambda _: False)
    monkeypatch.setattr(counters, "reader_of", lambda _: made.read)
    monkeypatch.setattr(counters, "reading_reader_of", lambda *_: made.read_all)
    monkeypatch.setattr(counters, "retries_and_ooms", lambda _: (0, 0))
    monkeypatch.setattr("memexport.tracker.step_counters._SHARE", 0)
    return made


def on_accelerator(allocator: Allocator, readings: list[Reading]) -> list[SimpleNamespace]:
    """What is recorded if these are read at the ends of steps after the first."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    exporter = CollectingExporter()
    with FakeTensorMode(), memexport.Tracker(exporters=[exporter], steps=(0, 1)) as tracker:
        torch.empty(10, device="cuda")
        tracker.step()
        for reading in readings:
            allocator.reading = reading
            tracker.step()
    return exporter.events()


def test_a_step_between_windows_has_its_devices_counters(allocator: Allocator) -> None:
    events = on_accelerator(
        allocator, [Reading(Counters(100, 200, 300), 0), Reading(Counters(50, 60, 300), 0)]
    )
    samples = [e for e in events if e.kind is EventKind.SAMPLE and e.step > 0]
    assert [(e.step, e.device, e.allocated_bytes, e.active_bytes, e.reserved_bytes) for e in samples] == [
        (1, "cuda:0", 100, 200, 300),
        (2, "cuda:0", 50, 60, 300),
    ]


def test_its_peak_is_known_only_if_the_allocators_own_rose(allocator: Allocator) -> None:
    readings = [Reading(Counters(100, 100, 400, peak), 0) for peak in (300, 300, 350, 10)]
    events = on_accelerator(allocator, readings)
    peaks = named(events, EventKind.SAMPLE, "allocator peak")
    assert [(e.step, e.allocated_bytes, e.active_bytes) for e in peaks] == [(1, 300, -1), (3, 350, -1)]


def test_a_step_in_which_the_allocator_tried_again_has_a_marker(allocator: Allocator) -> None:
    level = Counters(1, 1, 1)
    events = on_accelerator(allocator, [Reading(level, retries) for retries in (0, 2, 2)])
    assert [e.step for e in named(events, EventKind.MARKER, "allocation retry")] == [2]


def test_an_allocator_that_answers_slowly_is_asked_less_often(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memexport.tracker.step_counters._SHARE", 10**9)
    on_accelerator(allocator, [allocator.reading] * 20)
    assert allocator.calls == 2  # where recording paused, and once
