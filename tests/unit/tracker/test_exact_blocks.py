"""The allocator's blocks find their storages by size and order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from memexport.tracker import rows
from memexport.tracker.exact_blocks import Blocks

MAKES, DIES = rows.ALLOCATION, rows.RELEASE


@pytest.fixture
def blocks() -> Blocks:
    return Blocks(itertools.count(100).__next__)


def made(blocks: Blocks, now: int = 99) -> list[tuple[Any, ...]]:
    """The rows of this window: what, in which context, when, how many bytes, which block."""
    blocks.decide(now)
    names = {rows.ALLOCATION: "+", rows.RELEASE: "-"}
    result = [(names[row[0]], *row[1:]) for row in blocks.rows()]
    blocks.end_window()
    return result


def test_a_workspace_comes_and_goes_without_a_storage(blocks: Blocks) -> None:
    blocks.allocated(64, 1, MAKES, 7)
    blocks.released(64, 2, 7)
    assert made(blocks) == [("+", 7, 1, 64, 100), ("-", 7, 2, 64, 100)]


def test_a_storage_is_the_latest_block_of_its_size(blocks: Blocks) -> None:
    for time in (1, 2, 3):
        blocks.allocated(64 if time < 3 else 65, time, MAKES, 0)
    assert blocks.found(1, 64)
    assert blocks.number(1) == 101


def test_memory_is_given_back_where_its_storage_died(blocks: Blocks) -> None:
    blocks.allocated(64, 1, MAKES, 7)
    blocks.found(1, 64)
    assert blocks.died(1, 64, DIES, 8)
    blocks.released(64, 5, 9)
    assert made(blocks)[-1] == ("-", 8, 5, 64, 100)


def test_memory_may_be_given_back_before_its_storage_is_said_to_have_died(blocks: Blocks) -> None:
    for storage in (1, 2):
        blocks.allocated(64, storage, MAKES, 7)
        blocks.found(storage, 64)
    blocks.released(64, 5, 9)
    assert blocks.died(1, 64, DIES, 8)
    assert made(blocks)[2:] == [("-", 8, 5, 64, 100)]


def test_a_workspace_is_not_taken_for_a_storage_of_the_same_size_that_lives(blocks: Blocks) -> None:
    blocks.allocated(64, 1, MAKES, 0)
    blocks.found(1, 64)
    blocks.allocated(64, 2, MAKES, 0)
    blocks.released(64, 3, 0)
    blocks.died(1, 64, DIES, 0)
    blocks.released(64, 4, 0)
    assert [row[4] for row in made(blocks)] == [100, 101, 101, 100]


def test_a_storage_whose_memory_came_from_elsewhere_has_no_block(blocks: Blocks) -> None:
    assert not blocks.found(1, 64)
    assert not blocks.died(1, 64, DIES, 0)
    assert made(blocks) == []


def test_what_the_allocator_takes_back_for_a_stranger_is_nobody_elses(blocks: Blocks) -> None:
    """It remembers sizes from an earlier recording, right or wrong."""
    blocks.allocated(32, 1, MAKES, 0)
    blocks.found(2, 32)
    blocks.died(1, 64, DIES, 0)
    blocks.released(32, 2, 0)
    assert [row[0] for row in made(blocks)] == ["+"]


def test_what_is_taken_back_for_a_stranger_may_come_a_moment_before_it_died(blocks: Blocks) -> None:
    blocks.allocated(64, 1, MAKES, 0)
    blocks.found(2, 64)
    blocks.released(64, 2, 0)
    blocks.died(1, 64, DIES, 0)
    assert [row[0] for row in made(blocks)] == ["+"]


def test_what_is_taken_back_without_having_been_given_is_left_out(blocks: Blocks) -> None:
    blocks.released(64, 1, 0)
    assert made(blocks) == []


def test_a_storage_that_loses_its_memory_while_it_lives_is_not_released_twice(blocks: Blocks) -> None:
    blocks.allocated(64, 1, MAKES, 0)
    blocks.found(1, 64)
    blocks.released(64, 2, 3)
    assert made(blocks)[-1] == ("-", 3, 2, 64, 100)
    assert blocks.died(1, 64, DIES, 0)
    assert made(blocks) == []


def test_what_nobody_saw_given_back_ends_a_window_later(blocks: Blocks) -> None:
    blocks.allocated(64, 1, MAKES, 0)
    blocks.found(1, 64)
    blocks.died(1, 64, DIES, 5)
    assert [row[0] for row in made(blocks, 10)] == ["+"]
    assert made(blocks, 20) == [("-", 5, 20, 64, 100)]
    assert made(blocks, 30) == []


def test_a_storage_is_known_until_the_window_in_which_it_died_ends(blocks: Blocks) -> None:
    blocks.allocated(64, 1, MAKES, 0)
    blocks.found(1, 64)
    blocks.died(1, 64, DIES, 0)
    assert blocks.number(1) == 100
    made(blocks)
    assert blocks.number(1) is None
