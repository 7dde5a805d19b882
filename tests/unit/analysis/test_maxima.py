"""Maxima of many ranges at once, against Python's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memexport.analysis.maxima import first_maxima


@given(st.lists(st.integers(-5, 5), max_size=70), st.data())
def test_every_range_has_its_first_maximum(values: list[int], data: st.DataObject) -> None:
    bound = st.integers(0, len(values))
    ranges = data.draw(st.lists(st.tuples(bound, bound).map(sorted), max_size=20))
    begins, ends = np.array(ranges, np.int64).reshape(-1, 2).T
    found = first_maxima(np.array(values, np.int64), begins, ends).tolist()
    for index, (begin, end) in zip(found, ranges, strict=True):
        expected = values.index(max(values[begin:end]), begin) if begin < end else -1
        assert index == expected
