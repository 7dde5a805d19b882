"""Where the steps of a recording end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from memexport.model import Column, EventBatch, EventKind, StringTable

STEP: Final = "step"


class RankEnds(NamedTuple):
    """The ends of one rank's steps in a batch.

    Attributes:
        positions: of the events that end a step, ascending.
        is_first: whether these are the first of the rank that count, whatever was given before.
    """

    rank: int
    positions: Column
    is_first: bool


class StepEnds:
    """Takes the batches of a recording in order.

    A MARKER "step" is where somebody said that a step ends. A recording without any has the ends of its SPANs
    named "step"; of one that has them, these do not count: the last is of a step that was still open.
    """

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._marked: set[int] = set()

    def read(self, batch: EventBatch) -> Iterator[RankEnds]:
        """The ends of each rank that has any in this batch."""
        step = self._strings.find(STEP)
        if step is None:
            return
        rows = np.flatnonzero((batch.name == step) & (batch.kind >= EventKind.SPAN) & (batch.step >= 0))
        for rank in np.unique(batch.rank[rows]).tolist():
            of_rank = rows[batch.rank[rows] == rank]
            markers = of_rank[batch.kind[of_rank] == EventKind.MARKER]
            is_first = len(markers) > 0 and rank not in self._marked
            if is_first:
                self._marked.add(rank)
            ends = markers if rank in self._marked else of_rank
            if len(ends):
                yield RankEnds(rank, ends, is_first)
