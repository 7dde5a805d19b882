"""Whose node has this number, where two threads count from 0?"""

from __future__ import annotations

import pytest
import torch
from recorded import operators, record
from torch import nn

import memexport
from memexport.model import Phase
from memexport.tracker.makers import Makers
from memexport.tracker.modules import ModuleNode, SequenceOwners

LINEAR, TANH = (ModuleNode(nn.Identity(), path, "", None) for path in ("linear", "tanh"))


def forward(*boundaries: tuple[int, ModuleNode | None]) -> SequenceOwners:
    owners = SequenceOwners()
    for number, owner in boundaries:
        owners.running(number, owner)
    return owners


def engine(number: int, owner: ModuleNode) -> SequenceOwners:
    """An engine's thread that made its nodes up to this number in a backward of this module."""
    owners = SequenceOwners()
    owners.differentiates = True
    owners.made(1, owner, goes_on=False)
    owners.made(number, owner, goes_on=True)
    return owners


@pytest.fixture
def makers() -> Makers:
    return Makers()


def test_numbers_that_only_one_thread_has_given_are_its(makers: Makers) -> None:
    makers.add(forward((100, LINEAR), (110, None)))
    makers.add(engine(20, TANH))
    assert makers.are_several
    assert [makers.owner(number) for number in (0, 19, 100, 109)] == [TANH, TANH, LINEAR, LINEAR]
    assert [makers.owner(number) for number in (20, 110)] == [None, None]


def test_of_a_number_that_two_threads_have_given_nothing_is_said_unless_they_agree(makers: Makers) -> None:
    makers.add(forward((0, LINEAR), (5, TANH), (10, None)))
    makers.add(engine(20, TANH))
    assert [makers.owner(number) for number in (2, 7, 12)] == [None, TANH, None]


def test_a_node_of_this_step_comes_before_one_of_long_ago(makers: Makers) -> None:
    ahead, behind = forward((0, LINEAR), (50, None)), engine(20, TANH)
    makers.add(ahead)
    makers.add(behind)
    for _ in range(2):
        makers.step()
    behind.made(30, TANH, goes_on=True)
    assert makers.owner(25) is TANH
    ahead.running(60, LINEAR)
    assert makers.owner(62) is LINEAR


def test_replicas_side_by_side_agree_whatever_is_around_them(makers: Makers) -> None:
    makers.add(forward((0, LINEAR), (10, None)))
    makers.add(forward((0, None), (5, LINEAR), (10, None)))
    makers.add(forward((5, LINEAR)))
    assert [makers.owner(number) for number in (2, 7)] == [LINEAR, LINEAR]


def test_a_thread_is_added_once_and_all_are_forgotten(makers: Makers) -> None:
    owners = forward((0, LINEAR))
    makers.add(owners)
    makers.add(owners)
    assert not makers.are_several
    makers.add(forward((0, TANH)))
    makers.clear()
    assert (makers.are_several, makers.owner(0)) == (False, None)


def test_the_first_node_of_each_differentiated_backward_is_its_modules_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.Tanh())

    def work(_: memexport.Tracker) -> None:
        x = torch.ones(3, 4, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    found = [e for e in operators(record(work, model)) if e.phase is Phase.BACKWARD]
    second = [(e.name.split(".")[1], e.module) for e in found[9:31]]
    assert second[:4] == [("expand", None), ("pow", None), ("mul", None), ("mul", None)]
    # A linear layer's backward is `t` and `mm`: differentiated, mm gives `t, mm, t, mm`, and t gives `t`.
    linear = ["t", "mm", "t", "mm", "t"]
    assert second[4:9] == [(name, "0") for name in linear]
    assert {module for _, module in second[9:14]} == {"1"}
    assert second[14:19] == [(name, "2") for name in linear]
    assert {module for _, module in second[19:22]} == {"3"}
