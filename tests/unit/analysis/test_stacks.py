"""What is live, by the stack that allocated it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memexport.analysis.live import Allocations
from memexport.analysis.stacks import StackBytes, Stacks
from memexport.model import Tables

A = ("/home/me/train.py:1:main", "/home/me/model.py:2:forward")
B = ("/home/me/train.py:1:main", "/home/me/model.py:2:forward", "??:0:at::empty()")
C = ("/home/me/train.py:9:validate",)


def stacks_of(*rows, counter=None):
    """The stacks of allocations (size, stack)."""
    tables = Tables()
    ids = [tables.stacks.intern(map(tables.strings.intern, stack)) for _, stack in rows]
    columns = {
        "size_bytes": np.array([size for size, _ in rows], np.int64),
        "stack": np.array(ids, np.uint32),
    }
    return Stacks(Allocations(np.arange(len(rows), dtype=np.uint64), columns), counter, tables)


def test_whole_stacks_are_apart_and_own_code_is_together():
    stacks = stacks_of((10, A), (5, B), (5, B), (1, C))
    assert stacks.whole(20) == (StackBytes(B, 10, 2), StackBytes(A, 10, 1), StackBytes(C, 1, 1))
    code = ("train.py:1 main", "model.py:2 forward")
    assert stacks.own_code(20) == (StackBytes(code, 20, 3), StackBytes(("train.py:9 validate",), 1, 1))


def test_what_no_allocation_explains_and_what_has_no_stack_is_one_row():
    stacks = stacks_of((10, A), (3, ()), counter=50)
    assert stacks.whole(20) == (StackBytes(None, 40, 1), StackBytes(A, 10, 1))


def test_nothing_is_said_where_no_stack_is_known():
    assert stacks_of((10, ()), counter=50).whole(20) == ()
    assert stacks_of(counter=50).own_code(20) == ()


def test_equal_rows_are_ordered_by_their_frames_whatever_came_first():
    assert stacks_of((1, C), (1, A)).whole(20) == stacks_of((1, A), (1, C)).whole(20)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([(), A, B, C])), max_size=12), st.integers(1, 3))
def test_the_first_rows_are_the_largest_of_all(rows, limit):
    stacks = stacks_of(*rows)
    assert stacks.whole(limit) == stacks.whole(100)[:limit]
    if any(stack for _, stack in rows):
        assert sum(row.bytes for row in stacks.whole(100)) == sum(size for size, _ in rows)
