"""A recording of any length in a few thousand bins of time, of which each keeps its highest moment.

How long a recording is, is known only when it is over. So bins begin narrow, and when the recording outgrows
them, neighbours become one: the higher of both stays, and no peak is ever lost.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from memexport.analysis.category_bytes import CATEGORIES
from memexport.model import Column

BINS: Final = 4_096
"""How many there are at most; a recording that fills them has at least half as many."""

NARROWEST_SHIFT: Final = 6
"""The bins of the shortest recordings are 2 to this power nanoseconds wide."""

SAMPLE: Final = np.dtype([
    ("allocated_bytes", "i8"),
    ("reserved_bytes", "i8"),
    ("time_ns", "i8"),
    ("name", "u4"),
    ("module", "u4"),
    ("phase", "u1"),
    ("step", "i4"),
    ("categories", "i8", (CATEGORIES,)),
])  # fmt: skip
"""One moment of a place: its counters (−1: not known), what had just happened, and bytes by category."""

Samples = npt.NDArray[Any]


class Touched(NamedTuple):
    """The bins that events fall into, and which of the events count there.

    Attributes:
        bins: ascending, each once.
        highest: the index of the first event at which `allocated` was highest in the bin.
        last: the index of the last event in the bin.
        lowest_bytes: the lowest `allocated` in the bin.
        reserved_bytes: the highest `reserved` in the bin; −1 where it is not known.
    """

    bins: Column
    highest: Column
    last: Column
    lowest_bytes: Column
    reserved_bytes: Column


class TimeBins:
    """The bins of one place.

    Attributes:
        shift: a bin is 2 to this power nanoseconds wide.
        high: the first of the highest moments of each bin; `allocated_bytes` is −1 in a bin without events.
        last: the last moment of each bin.
        lowest_bytes: the lowest `allocated` of each bin; −1 in one without events.
        reserved_bytes: the highest `reserved` of each bin; −1 where it is not known.
    """

    def __init__(self) -> None:
        self.shift = NARROWEST_SHIFT
        self.clear()

    def clear(self) -> None:
        """Forget every moment; the width stays."""
        self.high, self.last = unknown_samples(BINS), unknown_samples(BINS)
        self.lowest_bytes, self.reserved_bytes = np.full(BINS, -1), np.full(BINS, -1)

    def room_for(self, time_ns: int) -> int:
        """Widen the bins until the last one takes this time; how often they were doubled."""
        return self.widen(max(self.shift, (time_ns // BINS).bit_length()))

    def widen(self, shift: int) -> int:
        """Double the bins until they are 2 to this power wide; how often."""
        doubled = shift - self.shift
        for _ in range(doubled):
            self._double()
        return doubled

    def touched(self, time_ns: Column, allocated: Column, reserved: Column) -> Touched:
        """The bins of events at these times, for which there must be room. No times: no bins."""
        bins = time_ns >> self.shift
        order = None
        # Threads and ranks may be a little out of step.
        if len(bins) > 1 and (bins[1:] < bins[:-1]).any():
            order = np.argsort(bins, kind="stable")
            bins, allocated, reserved = bins[order], allocated[order], reserved[order]
        begins = np.flatnonzero(np.diff(bins, prepend=-1))
        highs = np.maximum.reduceat(allocated, begins)
        counts = np.diff(begins, append=len(bins))
        at_high = np.flatnonzero(allocated == np.repeat(highs, counts))
        highest = at_high[np.searchsorted(at_high, begins)]
        last = begins + counts - 1
        if order is not None:
            highest, last = order[highest], order[last]
        lows = np.minimum.reduceat(allocated, begins)
        return Touched(bins[begins], highest, last, lows, np.maximum.reduceat(reserved, begins))

    def take(self, touched: Touched, samples: Samples) -> None:
        """Let events count; `samples`: the highest moment of each touched bin, then the last one of each."""
        bins = touched.bins
        high = samples[: len(bins)]
        higher = high["allocated_bytes"] > self.high["allocated_bytes"][bins]
        self.high[bins[higher]] = high[higher]
        self.last[bins] = samples[len(bins) :]
        lowest = self.lowest_bytes[bins]
        self.lowest_bytes[bins] = np.where(
            lowest < 0, touched.lowest_bytes, np.minimum(lowest, touched.lowest_bytes)
        )
        self.reserved_bytes[bins] = np.maximum(self.reserved_bytes[bins], touched.reserved_bytes)

    def note(self, sample: Samples) -> None:
        """Let one more moment count, for which there must be room, if it is higher than its bin."""
        place = int(sample["time_ns"]) >> self.shift
        if sample["allocated_bytes"] > self.high[place]["allocated_bytes"]:
            self.high[place] = sample

    def _double(self) -> None:
        self.shift += 1
        self.high = _padded(higher_of(self.high[::2], self.high[1::2]))
        known = self.last["allocated_bytes"][1::2] >= 0
        self.last = _padded(np.where(known, self.last[1::2], self.last[::2]))
        left, right = self.lowest_bytes[::2], self.lowest_bytes[1::2]
        lowest = np.where((left < 0) | (right < 0), np.maximum(left, right), np.minimum(left, right))
        self.lowest_bytes = _extended(lowest)
        self.reserved_bytes = _extended(np.maximum(self.reserved_bytes[::2], self.reserved_bytes[1::2]))


def higher_of(left: Samples, right: Samples) -> Samples:
    """Of two moments each the higher, of equals the left."""
    return np.where(right["allocated_bytes"] > left["allocated_bytes"], right, left)


def unknown_samples(count: int) -> Samples:
    """Moments of which nothing is known."""
    samples = np.zeros(count, SAMPLE)
    for name in ("allocated_bytes", "reserved_bytes", "step"):
        samples[name] = -1
    return samples


def _padded(samples: Samples) -> Samples:
    return np.concatenate((samples, unknown_samples(BINS - len(samples))))


def _extended(values: Column) -> Column:
    return np.concatenate((values, np.full(BINS - len(values), -1)))
