"""Each rank of a recording summed up by itself."""

from __future__ import annotations

import dataclasses

import numpy as np

from memexport.analysis.summary import Summary, SummaryFold
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables


class RankSummaries:
    """Takes the batches of a recording of one rank or of several in order, like a `SummaryFold`.

    Devices have the names that they have in a recording of the rank alone: "cuda:0".
    """

    def __init__(self, info: RecordingInfo, tables: Tables) -> None:
        self._info = info
        self._tables = tables
        self._own = -1 if info.rank is None else info.rank
        self._folds: dict[int, SummaryFold] = {}

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        ranks = np.where(batch.rank < 0, self._own, batch.rank)
        for rank in np.unique(ranks).tolist():
            of_rank = ranks == rank
            self._fold(rank).add(batch if of_rank.all() else batch.select(of_rank))

    def result(self, end: RecordingEnd) -> dict[int | None, Summary]:
        """By rank, in order; None is one that the recording does not say."""
        if not self._folds:
            self._fold(self._own)
        # What is of no rank is nothing to judge beside those that are.
        known = [rank for rank in sorted(self._folds) if rank >= 0 or len(self._folds) == 1]
        return {rank if rank >= 0 else None: self._folds[rank].result(end) for rank in known}

    def _fold(self, rank: int) -> SummaryFold:
        fold = self._folds.get(rank)
        if fold is None:
            info = dataclasses.replace(self._info, rank=rank if rank >= 0 else None)
            fold = self._folds[rank] = SummaryFold(info, self._tables)
        return fold
