"""Bytes by category after any event, against a count made event by event."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memexport.analysis.category_bytes import CATEGORIES, CategoryBytes
from memexport.model import Category, EventBatch, EventKind

MOVES = st.lists(
    st.tuples(
        st.sampled_from([EventKind.ALLOCATION, EventKind.RELEASE, EventKind.OPERATOR]),
        st.integers(1, 4),
        st.integers(0, 9),
        st.sampled_from([Category.PARAMETER, Category.ACTIVATION, Category.OTHER]),
    ),
    max_size=40,
)


def counted(moves: list[tuple[int, int, int, int]]) -> list[list[int]]:
    """After each event, the bytes of every category."""
    live: dict[int, tuple[int, int]] = {}
    rows = []
    for kind, address, size, category in moves:
        if kind == EventKind.ALLOCATION:  # anew, if something is there
            live[address] = size, category
        elif kind == EventKind.RELEASE:
            live.pop(address, None)
        row = [0] * CATEGORIES
        for size_there, category_there in live.values():
            row[category_there] += size_there
        rows.append(row)
    return rows


@given(MOVES, st.integers(0, 40))
def test_every_event_leaves_what_a_count_by_hand_leaves(
    moves: list[tuple[int, int, int, int]], cut: int
) -> None:
    follower, rows = CategoryBytes(), []
    for part in (moves[:cut], moves[cut:]):
        columns = np.array(part, np.int64).reshape(-1, 4).T
        batch = EventBatch(kind=columns[0], address=columns[1], size_bytes=columns[2], category=columns[3])
        everywhere = np.arange(len(part))
        changes = follower.add(batch, everywhere)
        after = changes.after(everywhere)
        assert changes.totals_after(everywhere).tolist() == after.sum(axis=1).tolist()
        rows += after.tolist()
        assert changes.end().tolist() == follower.now().tolist()
    assert rows == counted(moves)
