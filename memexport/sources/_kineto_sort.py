"""Sorts the rows of a trace by their begin, in bounded memory.

A trace is grouped by thread, so nothing can be handed out before all of it was read. Rows are kept as sorted
runs; when these grow large, they go to a temporary file, which has no name and disappears when it is closed.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from typing import IO, Final, Literal

import numpy as np

from memexport.sources._kineto_events import ROW, Rows

RUN_ROWS: Final = 2**19
"""How many rows are held in memory: some 30 MB, and as much again while they are sorted."""

_LEAST_LOADED: Final = 1_024


class SortedRows:
    """Takes rows in any order, and gives them back by their begin; the longer first, where that is the same.

    Attributes:
        count: how many were added.
        first: the least begin; None before the first row.

    Raises:
        OSError: there is no room for temporary files.
    """

    def __init__(self, run_rows: int = RUN_ROWS) -> None:
        self.count = 0
        self.first: int | None = None
        self._run_rows = run_rows
        self._gathered: list[Rows] = []
        self._gathered_rows = 0
        self._last = np.empty(0, ROW)
        self._file: IO[bytes] | None = None
        self._stops = [0]

    def add(self, rows: Rows) -> None:
        """Take rows. They must not be changed any more."""
        if not len(rows):
            return
        first = int(rows["begin"].min())
        self.first = first if self.first is None else min(first, self.first)
        self.count += len(rows)
        self._gathered.append(rows)
        self._gathered_rows += len(rows)
        if self._gathered_rows >= self._run_rows:
            self._spill(self._take_gathered())

    def finish(self) -> None:
        """Take no more rows."""
        self._last = self._take_gathered()

    def blocks(self, rows: int) -> Iterator[Rows]:
        """All rows in order, in blocks of about this many. Can be called again."""
        share = max(_LEAST_LOADED, rows // len(self._stops))
        spilled = [self._read(*bounds, share) for bounds in itertools.pairwise(self._stops)]
        yield from _merged([*spilled, _slices(self._last, share)])

    def close(self) -> None:
        """Give the temporary file back. Calling it twice does nothing."""
        if self._file is not None:
            self._file.close()

    def _take_gathered(self) -> Rows:
        rows = _ordered(self._gathered)
        self._gathered, self._gathered_rows = [], 0
        return rows

    def _spill(self, rows: Rows) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="memexport-")  # noqa: SIM115 - `close` closes it
        self._file.write(rows.data)
        self._stops.append(self._stops[-1] + len(rows))

    def _read(self, begin: int, stop: int, length: int) -> Iterator[Rows]:
        """The rows of a run in the file, in order; other runs may be read in between."""
        for place in range(begin, stop, length):
            if self._file is not None:
                self._file.seek(place * ROW.itemsize)
                read = self._file.read(min(length, stop - place) * ROW.itemsize)
                yield np.frombuffer(read, ROW)


def _slices(rows: Rows, length: int) -> Iterator[Rows]:
    for begin in range(0, len(rows), length):
        yield rows[begin : begin + length]


def _merged(runs: list[Iterator[Rows]]) -> Iterator[Rows]:
    """The rows of sorted runs in order; of equal begins, those of earlier runs first.

    A row around another that begins at the same nanosecond comes first if they meet in one block. They do:
    they are of one thread, so they stand close together in the file.
    """
    loaded = [(rows, run) for run in runs if (rows := next(run, None)) is not None]
    while loaded:
        lasts = [rows["begin"][-1] for rows, _ in loaded]
        # Of this run, all that was loaded comes before what was not; of the others, what is below its last.
        limiting = min(range(len(loaded)), key=lasts.__getitem__)
        taken, left = [], []
        for number, (rows, run) in enumerate(loaded):
            side: Literal["left", "right"] = "right" if number <= limiting else "left"
            stop = int(np.searchsorted(rows["begin"], lasts[limiting], side))
            taken.append(rows[:stop])
            rest = rows[stop:] if stop < len(rows) else next(run, None)
            if rest is not None:
                left.append((rest, run))
        yield _ordered(taken)
        loaded = left


def _ordered(parts: list[Rows]) -> Rows:
    rows = np.concatenate(parts) if parts else np.empty(0, ROW)
    return rows[np.lexsort((-rows["end"], rows["begin"]))]
