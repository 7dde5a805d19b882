"""Maxima of many ranges of one column at once."""

from __future__ import annotations

import numpy as np

from memexport.model import Column


def first_maxima(values: Column, begins: Column, ends: Column) -> Column:
    """For each range [begin, end) of `values`, the index of its first maximum; −1 for an empty range.

    A sparse table, built level by level: O((n + ranges) · log n) time, O(n) memory.
    """
    lengths = ends - begins
    found = np.full(len(begins), -1, np.intp)
    best = np.arange(len(values))
    width = 1
    while width <= len(values):
        # `best[i]` is the first maximum of `width` values from i on; two such ranges cover up to twice that.
        here = np.flatnonzero((lengths >= width) & (lengths < 2 * width))
        found[here] = _first_of_larger(values, best[begins[here]], best[ends[here] - width])
        if not (lengths >= 2 * width).any():
            break
        best = _first_of_larger(values, best[: len(best) - width], best[width:])
        width *= 2
    return found


def _first_of_larger(values: Column, left: Column, right: Column) -> Column:
    """Of two indices each, `left` ≤ `right`, that of the larger value; of equals the first."""
    return np.where(values[left] >= values[right], left, right)
