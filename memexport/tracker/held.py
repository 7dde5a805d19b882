"""Rows that wait: until a forward or backward is over, nobody knows which of its storages are temporary."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from memexport.tracker.categories import begins_stretch
from memexport.tracker.chunk import Rows
from memexport.tracker.rows import ROW, Labels

_MOST_ROWS: Final = 500_000


class Ready(NamedTuple):
    """Rows that need not wait any longer; `complete` as for `Assembler.batch`."""

    rows: Rows
    complete: bool


class HeldRows:
    """Keeps the rows of the stretch that is still going on and of the one before it, for a while.

    Of that one too, because what is said of a storage may come a little late: only when a model returns does
    it tell what it was given by name.

    Args:
        labels: what the rows' labels and contexts stand for.
        most_ns: rows older than this wait no longer.
    """

    def __init__(self, labels: Labels, most_ns: int) -> None:
        self._labels = labels
        self._most_ns = most_ns
        self._held = bytearray()

    def add(self, chunk: bytes) -> Iterator[Ready]:
        """Take the next whole rows; those that are ready."""
        self._held += chunk
        parsed = Rows.parse(bytes(self._held), self._labels)
        begins = np.flatnonzero(begins_stretch(parsed, self._labels))
        latest = int(begins[-2]) if len(begins) > 1 else 0
        if latest:
            del self._held[: latest * ROW.size]
            yield Ready(parsed.part(0, latest), complete=True)
        waiting = len(parsed) - latest
        if waiting > _MOST_ROWS or (
            waiting and time.perf_counter_ns() - int(parsed.time[latest]) > self._most_ns
        ):
            self._held.clear()
            yield Ready(parsed.part(latest, len(parsed)), complete=False)

    def rest(self) -> Iterator[Ready]:
        """What still waits."""
        if self._held:
            parsed = Rows.parse(bytes(self._held), self._labels)
            self._held.clear()
            yield Ready(parsed, complete=False)
