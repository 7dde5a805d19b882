"""What was live at a few hundred moments of a recording of any length: the highest of each window of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.group_bytes import GroupChanges
from memexport.analysis.time_bins import BINS, NARROWEST_SHIFT, Samples, Touched
from memexport.model import Column

WINDOW_BINS: Final = 8
"""How many bins of time share one moment."""

WINDOWS: Final = BINS // WINDOW_BINS
LISTED: Final = 20
"""How many groups a moment lists."""


@dataclass(frozen=True)
class Moment:
    """What was live right after an event.

    Attributes:
        sample: the moment, a row of `time_bins.SAMPLE`.
        groups: numbers of groups, the largest first.
        bytes: what each of them held, > 0.
        others_bytes: what all further groups held.
        unexplained_bytes: what `allocated` was beyond all groups.
    """

    sample: Samples
    groups: Column
    bytes: Column
    others_bytes: int
    unexplained_bytes: int

    @property
    def allocated_bytes(self) -> int:
        """The counter."""
        return int(self.sample["allocated_bytes"])


def moment_of(sample: Samples, live: Column, limit: int) -> Moment:
    """The moment with its `limit` largest groups.

    Args:
        sample: a row of `time_bins.SAMPLE`.
        live: bytes by group; it is not kept.
        limit: of groups.
    """
    groups = np.flatnonzero(live > 0)
    if len(groups) > limit:
        groups = groups[np.argpartition(live[groups], -limit)[-limit:]]
    groups = groups[np.lexsort((groups, -live[groups]))]
    listed, total = live[groups], int(live.sum())
    unexplained = max(0, int(sample["allocated_bytes"]) - total)
    return Moment(sample, groups, listed, total - int(listed.sum()), unexplained)


class WindowMoments:
    """The highest and the last moment of each window of one place. Windows double together with the bins.

    Attributes:
        shift: of the bins, see `TimeBins`.
        high: the first of the highest moments of each window; None in one without events.
        last: the last moment of a window; None where events follow in the next one.
    """

    def __init__(self) -> None:
        self.shift = NARROWEST_SHIFT
        self.clear()

    def clear(self) -> None:
        """Forget every moment."""
        self.high: list[Moment | None] = [None] * WINDOWS
        self.last: list[Moment | None] = [None] * WINDOWS

    def double(self, times: int) -> None:
        """Let two windows become one, so many times."""
        self.shift += times
        for _ in range(times):
            rest: list[Moment | None] = [None] * (WINDOWS // 2)
            pairs = list(zip(self.high[::2], self.high[1::2], strict=True))
            lasts = zip(self.last[::2], self.last[1::2], pairs, strict=True)
            self.last = [left if pair[1] is None else right for left, right, pair in lasts] + rest
            self.high = [_higher(*pair) for pair in pairs] + rest

    def take(self, touched: Touched, samples: Samples, positions: Column, changes: GroupChanges) -> None:
        """Let the events of a batch count.

        Args:
            touched: the bins that they fall into.
            samples: the highest moment of each of these bins, then the last one of each.
            positions: of the events in the batch, as `touched` numbers them.
            changes: what the batch changed.
        """
        wanted = sorted(self._wanted(touched, samples), key=lambda pick: pick[0])
        events = positions[np.array([event for event, *_ in wanted], np.intp)]
        for (_, row, window, is_high), live in zip(wanted, changes.rows_after(events), strict=True):
            moment = moment_of(samples[row], live, LISTED)
            (self.high if is_high else self.last)[window] = moment

    def note(self, moment: Moment) -> None:
        """Let one more moment count if it is higher than its window; of equals, the one that was there."""
        window = (int(moment.sample["time_ns"]) >> self.shift) // WINDOW_BINS
        self.high[window] = _higher(self.high[window], moment)

    def _wanted(self, touched: Touched, samples: Samples) -> Iterator[tuple[int, int, int, bool]]:
        """The moments that count: the event, its row among the samples, its window, whether it is a high."""
        count = len(touched.bins)
        windows = touched.bins // WINDOW_BINS
        begins = np.flatnonzero(np.diff(windows, prepend=-1))
        ends = [*begins[1:].tolist(), count]
        allocated = samples["allocated_bytes"][:count]
        for begin, end in zip(begins.tolist(), ends, strict=True):
            window = int(windows[begin])
            row = begin + int(allocated[begin:end].argmax())
            known = self.high[window]
            if known is None or int(allocated[row]) > known.allocated_bytes:
                yield int(touched.highest[row]), row, window, True
            self.last[window] = None
            # What follows in the next window says itself what was live; else it has to be said once.
            if end == count or int(windows[end]) > window + 1:
                yield int(touched.last[end - 1]), count + end - 1, window, False


def _higher(left: Moment | None, right: Moment | None) -> Moment | None:
    if left is None or right is None:
        return left or right
    return right if right.allocated_bytes > left.allocated_bytes else left
