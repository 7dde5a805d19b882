"""Where a recorder paused: it recorded when steps ended, and what happened in them it did not see."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.model import Column, EventBatch, EventKind, StringTable

NOT_RECORDED: Final = "not recorded"
"""The MARKER where recording pauses, and the SPAN of the pause, which stands where recording goes on."""


class Pauses:
    """Takes the batches of a recording in order."""

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._paused: set[int] = set()

    @property
    def paused(self) -> frozenset[int]:
        """The ranks whose recording has paused."""
        return frozenset(self._paused)

    def read(self, batch: EventBatch) -> tuple[npt.NDArray[np.bool_], Column]:
        """Whether each event is in a pause of its rank, and the positions of the SPANs of pauses."""
        in_pause = np.isin(batch.rank, list(self._paused)) if self._paused else np.zeros(len(batch), np.bool_)
        turns = self._turns(batch)
        for turn in turns.tolist():
            rank, begins = int(batch.rank[turn]), batch.kind[turn] == EventKind.MARKER
            in_pause[turn:][batch.rank[turn:] == rank] = begins
            (self._paused.add if begins else self._paused.discard)(rank)
        return in_pause, turns[batch.kind[turns] == EventKind.SPAN]

    def _turns(self, batch: EventBatch) -> Column:
        name = self._strings.find(NOT_RECORDED)
        if name is None:
            return np.empty(0, np.int64)
        return np.flatnonzero((batch.name == name) & (batch.kind >= EventKind.SPAN))
