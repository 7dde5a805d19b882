"""Slices stay nested on their track, whatever their times and batches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memexport.exporters._nesting import Nesting, Nestings

Slice = tuple[int, int]
SLICES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=40
)


def fit(batches: list[list[Slice]]) -> list[tuple[int, int, bool]]:
    """The drawn begin, the end and whether it fits, of every slice."""
    nesting, drawn = Nesting(), []
    for batch in batches:
        begin, end = (np.array(column, np.int64) for column in zip(*batch, strict=True))
        begin, fits = nesting.fit(begin, end)
        drawn += list(zip(begin.tolist(), end.tolist(), fits.tolist(), strict=True))
    return drawn


@given(SLICES, st.integers(1, 7))
def test_what_fits_never_crosses(slices: list[Slice], size: int) -> None:
    """Of any two drawn slices, one holds the other or they are apart."""
    ordered = sorted(slices, key=lambda s: s[1])
    drawn = fit([ordered[first : first + size] for first in range(0, len(ordered), size)])
    kept = [(begin, end) for begin, end, fits in drawn if fits]
    for place, (begin, end) in enumerate(kept):
        for other_begin, other_end in kept[:place]:
            assert other_end <= begin or begin <= other_begin <= other_end <= end


def test_a_slice_around_one_written_before_begins_a_nanosecond_earlier() -> None:
    """The tie is broken so that the outer one comes first, level by level."""
    assert fit([[(10, 20)], [(10, 30)], [(10, 40), (10, 50)]]) == [
        (10, 20, True),
        (9, 30, True),
        (8, 40, True),
        (7, 50, True),
    ]


def test_a_tie_without_room_does_not_fit() -> None:
    """Something else ends where the outer slice begins, and nothing may overlap it."""
    assert fit([[(0, 10), (10, 20)], [(10, 30)]])[-1] == (10, 30, False)


def test_a_tie_within_a_batch_is_left_to_the_order_of_packets() -> None:
    """The exporter writes the outer one first."""
    assert fit([[(10, 20), (10, 30)]]) == [(10, 20, True), (10, 30, True)]


def test_slices_that_cross_go_beside_the_track() -> None:
    """The one that ends later gives way; what is apart shares a lane."""
    nestings = Nestings(lambda track, lane: 100 * track + lane)
    begin = np.array([0, 5, 20, 25])
    end = np.array([10, 15, 30, 35])
    drawn, track = nestings.fit(np.array([7, 7, 7, 7]), begin, end)
    assert drawn.tolist() == begin.tolist()
    assert track.tolist() == [7, 700, 7, 700]


def test_a_slice_around_one_that_was_moved_is_moved_before_it() -> None:
    """It begins where the moved one is drawn, not where that begins."""
    assert fit([[(28, 29)], [(28, 30)], [(27, 31)]]) == [(28, 29, True), (27, 30, True), (26, 31, True)]
