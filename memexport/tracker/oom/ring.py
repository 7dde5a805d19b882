"""The last events of a process as raw rows, and what is left of all those before them.

Nothing is worked out while training runs: rows stay the bytes that they were logged as. Of those that fall
out of the ring, the allocations that are still alive stay, so that what lives is known to the byte.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.tracker import rows
from memexport.tracker.assemble import CallDetails
from memexport.tracker.chunk import Rows
from memexport.tracker.rows import DEVICE_UNIT, ROW_DTYPE, Labels

Raw = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_KEPT: Final = np.dtype([*ROW_DTYPE.descr, ("stack", "<u4"), ("step", "<i4")])


@dataclass(frozen=True)
class Baseline:
    """What rows that are gone have left behind.

    Attributes:
        rows: the ALLOCATION rows of storages that live, with the CATEGORY rows about them, in the order in
            which they were logged; besides a row's columns, `stack` and `step`.
        steps: how many steps ended.
        step_began: `time.perf_counter_ns` when the last of them did; None if none did.
        dropped_events: how many rows of events are gone for good.
    """

    rows: Raw
    steps: int = 0
    step_began: int | None = None
    dropped_events: int = 0

    @staticmethod
    def none() -> Baseline:
        """Before anything is gone."""
        return Baseline(np.empty(0, _KEPT))

    def after(self, raw: Raw, stacks: Raw | None) -> Baseline:
        """With further rows gone; `stacks` are the stack ids of those rows, None where none were recorded."""
        kind = _kind(raw)
        ends = raw["time"][kind == rows.STEP]
        known = np.concatenate((self.rows, self._speaking(raw, kind, stacks)))
        left = known[_is_alive(known, raw["second"][kind == rows.RELEASE])]
        events = np.count_nonzero(_is_event(kind))
        return Baseline(
            left,
            self.steps + len(ends),
            int(ends[-1]) if len(ends) else self.step_began,
            self.dropped_events + int(events) - (_allocations(left) - _allocations(self.rows)),
        )

    def _speaking(self, raw: Raw, kind: Raw, stacks: Raw | None) -> Raw:
        """Those of the rows that say what a storage is."""
        about = np.flatnonzero((kind == rows.ALLOCATION) | (kind == rows.CATEGORY))
        said = np.empty(len(about), _KEPT)
        for name in ROW_DTYPE.names or ():
            said[name] = raw[name][about]
        said["stack"] = 0 if stacks is None else stacks[about]
        said["step"] = self.steps + np.cumsum(kind == rows.STEP)[about]
        return said


@dataclass(frozen=True)
class Contents:
    """A ring at one moment; it does not change any more."""

    baseline: Baseline
    chunks: tuple[bytes, ...]

    @property
    def steps(self) -> int:
        """How many steps ended until now."""
        kinds = (_kind(np.frombuffer(chunk, ROW_DTYPE)) for chunk in self.chunks)
        return self.baseline.steps + sum(int(np.count_nonzero(kind == rows.STEP)) for kind in kinds)


class Ring:
    """Keeps the rows of at least the last `events` events, and forgets older ones by the chunk.

    Args:
        labels: what the rows' codes stand for.
        events: more than that stay only until the oldest chunk (at most 16 385 rows) can go.
        details: whether there are DETAILS rows.
    """

    def __init__(self, labels: Labels, events: int, *, details: bool) -> None:
        self._labels = labels
        self._least_events = events
        self._details = CallDetails() if details else None
        self._chunks: deque[bytes] = deque()
        self._events: deque[int] = deque()
        self._all_events = 0
        self._baseline = Baseline.none()
        self._changing = threading.Lock()

    def add(self, chunk: bytes) -> None:
        """Take the next whole rows."""
        events = int(np.count_nonzero(_is_event(_kind(np.frombuffer(chunk, ROW_DTYPE)))))
        with self._changing:
            self._chunks.append(chunk)
            self._events.append(events)
            self._all_events += events
            while self._all_events - self._events[0] >= self._least_events:
                oldest = self._chunks.popleft()
                self._all_events -= self._events.popleft()
                self._baseline = self._baseline.after(np.frombuffer(oldest, ROW_DTYPE), self._stacks(oldest))

    def contents(self) -> Contents:
        """What is in it now."""
        with self._changing:
            return Contents(replace(self._baseline), tuple(self._chunks))

    def _stacks(self, chunk: bytes) -> Raw | None:
        if self._details is None:
            return None
        return self._details.columns(Rows.parse(chunk, self._labels))["stack"]


def _kind(raw: Raw) -> Raw:
    kind: Raw = raw["code"] & (DEVICE_UNIT - 1)
    return kind


def _is_event(kind: Raw) -> Mask:
    is_event: Mask = (kind >= rows.OPERATOR) & (kind <= rows.MARKER)
    return is_event


def _allocations(kept: Raw) -> int:
    return int(np.count_nonzero(_kind(kept) == rows.ALLOCATION))


def _is_alive(kept: Raw, released: Raw) -> Mask:
    """Which rows speak of a storage that was allocated and is not among those released."""
    allocated = kept["second"][_kind(kept) == rows.ALLOCATION]
    living = np.sort(allocated[~_is_among(allocated, np.sort(released))])
    return _is_among(kept["second"], living)


def _is_among(numbers: Raw, ascending: Raw) -> Mask:
    if not len(ascending):
        return np.zeros(len(numbers), np.bool_)
    place = np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)
    found: Mask = ascending[place] == numbers
    return found
