"""Two recordings on one time line: both begin at 0, each rank of each is a process of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from memexport.model import EventBatch, RecordingEnd
from memexport.sources import Source
from memexport.sources.merged import MergedSource


class Side(NamedTuple):
    """One of the recordings.

    Attributes:
        source: opened.
        name: what it is called in a warning.
        processes: what the process of each rank is called, by what the column `rank` holds; those of one name
            are one process.
        first_ns: the time of its earliest event, which becomes 0.
    """

    source: Source
    name: str
    processes: Mapping[int, str]
    first_ns: int


class SideBySideSource:
    """The events of both by their times since their beginnings; the first one's ranks come first, from 0.

    Closing it closes both.
    """

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        processes = list(dict.fromkeys(name for side in sides for name in side.processes.values()))
        numbers = {name: number for number, name in enumerate(processes)}
        parts = [
            _FromZero(side.source, side.first_ns, {r: numbers[name] for r, name in side.processes.items()})
            for side in sides
        ]
        self._merged = MergedSource(parts, [side.name for side in sides], ranks=range(len(processes)))
        names = dict(enumerate(processes))
        self.info = dataclasses.replace(self._merged.info, world_size=len(names), rank_names=names)
        self.tables = self._merged.tables

    @staticmethod
    def sniff(head: bytes) -> bool:  # noqa: ARG004 - a Source's interface
        """No file is one."""
        return False

    def batches(self) -> Iterator[EventBatch]:
        """Every event of both."""
        return self._merged.batches()

    def end(self) -> RecordingEnd:
        """The warnings of each, under its name."""
        ends = [side.source.end() for side in self._sides]
        warnings = (
            f"{side.name}: {warning}"
            for side, end in zip(self._sides, ends, strict=True)
            for warning in end.warnings
        )
        return RecordingEnd(warnings=tuple(warnings), dropped_events=sum(end.dropped_events for end in ends))

    @property
    def fraction_read(self) -> float | None:
        """The mean of both."""
        return self._merged.fraction_read

    def close(self) -> None:
        """Give the files back. Calling it twice does nothing."""
        self._merged.close()


class _FromZero:
    """A recording whose clock begins at 0, with other ranks."""

    def __init__(self, source: Source, first_ns: int, ranks: Mapping[int, int]) -> None:
        self._source, self._first_ns = source, first_ns
        self._from = np.array(sorted(ranks), np.int32)
        self._to = np.array([ranks[rank] for rank in self._from.tolist()], np.int32)
        self.tables = source.tables
        self.info = dataclasses.replace(
            source.info, start_time_unix_ns=0, rank=None, world_size=None, options={}
        )

    @staticmethod
    def sniff(head: bytes) -> bool:  # noqa: ARG004 - a Source's interface
        return False

    def batches(self) -> Iterator[EventBatch]:
        for batch in self._source.batches():
            columns = batch.columns()
            columns["time_unix_ns"] = columns["time_unix_ns"] - np.int64(self._first_ns)
            columns["rank"] = self._to[np.searchsorted(self._from, columns["rank"])]
            yield EventBatch(**columns)

    def end(self) -> RecordingEnd:
        return self._source.end()

    @property
    def fraction_read(self) -> float | None:
        return self._source.fraction_read

    def close(self) -> None:
        self._source.close()
