"""Ranges of addresses are what a set of single bytes would be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from memexport.analysis.ranges import Range, Ranges

changes = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 12)), max_size=30)


@given(changes)
def test_what_is_mapped_is_what_was_added_and_not_cut(changes):
    ranges, bytes_mapped = Ranges(), {}
    for stream, (added, address, size) in enumerate(changes):
        for byte in range(address, address + size):
            bytes_mapped.pop(byte, None)
            if added:
                bytes_mapped[byte] = stream
        if added:
            ranges.add(Range(address, size, stream))
        else:
            ranges.cut(address, size)
    found = list(ranges)
    assert {byte: r.stream for r in found for byte in range(r.address, r.end)} == bytes_mapped
    assert all(one.end <= other.address for one, other in itertools.pairwise(found))
    assert all(r.size_bytes > 0 for r in found)


def test_neighbours_stay_apart():
    ranges = Ranges()
    ranges.add(Range(0, 4, 1, 7))
    ranges.add(Range(4, 4, 1, 8))
    assert list(ranges) == [Range(0, 4, 1, 7), Range(4, 4, 1, 8)]


def test_cutting_the_middle_leaves_both_sides_what_they_were():
    ranges = Ranges()
    ranges.add(Range(10, 10, 3, 5))
    ranges.cut(13, 4)
    assert list(ranges) == [Range(10, 3, 3, 5), Range(17, 3, 3, 5)]
