"""Whether the clocks of several ranks agree, as far as their steps tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from memexport.model import EventBatch, EventKind, StringTable

_LEAST_SKEW_NS: Final = 1_000_000
_REMEMBERED: Final = 1_000


class StepClock:
    """Compares when the ranks end their steps.

    Ranks that train together wait for one another in every step, so a rank whose steps always end later than
    the others' by the same time has another clock, or is what the others wait for.
    """

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._ends: dict[int, dict[int, int]] = {}

    def add(self, batch: EventBatch) -> None:
        """Take one more batch; the first thousand steps of each rank are looked at."""
        name = self._strings.find("step")
        rows = np.flatnonzero(
            (batch.kind == EventKind.SPAN) & (batch.step >= 0) & (batch.name == (name or 0))
        )
        ends = batch.time_unix_ns[rows] + batch.duration_ns[rows]
        ranks, steps = batch.rank[rows].tolist(), batch.step[rows].tolist()
        for rank, step, end in zip(ranks, steps, ends.tolist(), strict=True):
            known = self._ends.setdefault(rank, {})
            if len(known) < _REMEMBERED:
                known[step] = end

    def warnings(self) -> Iterator[str]:
        """A sentence for each rank whose steps end at other times than those of the first one."""
        if len(self._ends) < 2:
            return
        first = min(self._ends)
        for rank in sorted(self._ends):
            common = self._ends[rank].keys() & self._ends[first].keys()
            if rank == first or not common:
                continue
            skew = int(np.median([self._ends[rank][step] - self._ends[first][step] for step in common]))
            if abs(skew) >= _LEAST_SKEW_NS:
                when = "after" if skew > 0 else "before"
                yield (
                    f"rank {rank}: steps end {abs(skew) / 1e6:.1f} ms {when} those of rank {first}: "
                    "their clocks may differ"
                )
