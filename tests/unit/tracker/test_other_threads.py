"""Threads that the program starts itself: what modules do in them is recorded, and nothing stays behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from recorded import operators, record
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import memexport
from memexport.model import Phase


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run it in so many threads at once; an error in one is raised here."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_modules_that_run_side_by_side_in_threads_are_all_recorded() -> None:
    net, all_there = model(), threading.Barrier(4)

    def forward(_: int) -> None:
        all_there.wait(30)
        for _ in range(10):
            net(torch.ones(3, 8))
        all_there.wait(30)

    def work(_: memexport.Tracker) -> None:
        in_threads(4, forward)

    found = [e for e in operators(record(work)) if e.name == "aten.addmm.default"]
    assert len(found) == 4 * 10 * 2
    assert {e.module for e in found} == {"0", "2"}
    assert len({e.thread for e in found}) == 4
    assert {e.phase for e in found} == {Phase.FORWARD}


def test_replicas_in_threads_that_one_backward_goes_through_keep_their_modules() -> None:
    """As DataParallel does it: a thread per replica, and the backward in the thread that gathered."""
    net = model()

    def work(_: memexport.Tracker) -> None:
        outputs: dict[int, torch.Tensor] = {}
        for _ in range(2):  # the second time, threads have the identities of the first
            in_threads(2, lambda number: outputs.__setitem__(number, net(torch.ones(3, 8)).sum()))
            (outputs[0] + outputs[1]).backward()

    backward = [e for e in operators(record(work)) if e.phase == Phase.BACKWARD]
    products = [e.module for e in backward if e.name == "aten.mm.default"]
    assert sorted(products) == ["0"] * 4 + ["2"] * 8
    assert {e.module for e in backward if e.name == "aten.threshold_backward.default"} == {"1"}


def test_a_module_of_a_background_thread_does_not_cost_training_its_modules() -> None:
    net, other = model(), nn.Sequential(nn.Conv1d(1, 1, 1))

    def work(_: memexport.Tracker) -> None:
        in_threads(1, lambda _: other(torch.ones(1, 1, 5)))
        for _ in range(20):
            loss = net(torch.ones(3, 8)).sum()
        loss.backward()

    backward = [e for e in operators(record(work, net)) if e.phase == Phase.BACKWARD]
    assert {e.module for e in backward if e.name == "aten.mm.default"} == {"0", "2"}


def test_no_mode_is_left_in_a_thread_also_after_an_exception() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("on purpose")

    def work(_: int) -> None:
        net = nn.Sequential(nn.ReLU(), Failing())
        for _ in range(2):
            try:
                net(torch.ones(3))
            except RuntimeError:
                assert _get_current_dispatch_mode_stack() == []

    with memexport.Tracker() as tracker:
        in_threads(3, work)
    assert tracker.summary().warnings == ()


def test_a_thread_inside_a_module_when_recording_stops_gets_rid_of_the_mode() -> None:
    entered, stopped = threading.Event(), threading.Event()
    left: list[object] = []

    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            entered.set()
            assert stopped.wait(30)
            return x + 1

    def work() -> None:
        nn.Sequential(Waiting())(torch.ones(3))
        left.extend(_get_current_dispatch_mode_stack())

    thread = threading.Thread(target=work)
    with memexport.Tracker():
        thread.start()
        assert entered.wait(30)
    stopped.set()
    thread.join()
    assert left == []
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_hooks_always_called


def test_results_are_those_of_threads_without_a_tracker() -> None:
    net = model()

    def results() -> dict[int, torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        in_threads(3, lambda number: found.__setitem__(number, net(torch.full((2, 8), float(number)))))
        return found

    plain = results()
    with memexport.Tracker(net):
        tracked = results()
    assert all(torch.equal(plain[number], tracked[number]) for number in plain)
