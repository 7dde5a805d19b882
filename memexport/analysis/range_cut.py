"""Cuts a range out of a stream of events, with what lived when it begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from memexport.analysis.live import LiveSet
from memexport.analysis.places import Place, split_by_place
from memexport.analysis.when import When
from memexport.errors import UsageError
from memexport.model import Column, EventBatch, EventKind, StringTable

_COUNTERS: Final = ("allocated_bytes", "active_bytes", "reserved_bytes")
_KEPT: Final = ("size_bytes", "category", "name", "module", "thread", "stack", "phase", "step")
"""What is told of an allocation that lived before the range; the rest follows from its place."""


class RangeCut:
    """Takes the batches of a recording in order and gives those of a range.

    Memory grows with what is live at once, not with what lies before the range.

    Args:
        begin: with `until`, an event's index or a Unix time; None: as far as the recording goes.
        strings: of the recording.

    Attributes:
        begin_ns: when the range begins: where it was given by an event's index, when the last event before it
            ended. None while that is not known.
        events_before: how many events there were before the range.
        is_over: whether the range's end was seen.
    """

    def __init__(self, begin: When | None, until: When | None, strings: StringTable) -> None:
        self._begin, self._until = begin, until
        self._strings = strings
        self._begun = begin is None
        self.begin_ns = begin.value if begin is not None and begin.unit == "unix" else None
        self._before = _Before(strings)
        self._next_event = 0
        self.events_before = 0
        self.is_over = False

    def take(self, batch: EventBatch) -> EventBatch:
        """The events of the batch that are in the range, and before the first of them what lived then.

        Raises:
            UsageError: the range ends before it begins.
        """
        if self._begin is None and self._until is None:
            return batch
        peaks = _markers(batch, "peak", self._strings)
        begin = 0 if self._begun else self._position(self._begin, batch, peaks)
        until = self._position(self._until, batch, peaks)
        if until < begin:
            raise UsageError("the selected range ends before it begins")
        self._next_event += len(batch)
        self.is_over = until < len(batch)
        self._leave_out(batch.select(slice(0, begin)), peaks[:begin])
        inside = self._inside(batch.select(slice(begin, until)), peaks[begin:until])
        if self._begun or begin == len(batch):
            return inside
        return EventBatch.concat([self._begin_range(), inside])

    def finish(self) -> EventBatch:
        """What lived when the range begins, if nothing came after that."""
        return EventBatch.concat([]) if self._begun else self._begin_range()

    def _position(self, when: When | None, batch: EventBatch, peaks: Column) -> int:
        """The position of the first event that is or comes after `when`; the batch's length if none does."""
        if when is None:
            return len(batch)
        if when.unit == "event":
            return min(max(when.value - self._next_event, 0), len(batch))
        reached = (_ends(batch) >= when.value) & ~peaks
        return int(reached.argmax()) if reached.any() else len(batch)

    def _leave_out(self, batch: EventBatch, peaks: Column) -> None:
        self.events_before += len(batch)
        batch = _without(batch, peaks)
        self._before.add(batch)
        if self._begin is not None and self._begin.unit == "event" and len(batch):
            self.begin_ns = max(int(_ends(batch).max()), self.begin_ns or 0)

    def _inside(self, batch: EventBatch, peaks: Column) -> EventBatch:
        """The events without the recording's peak, and without what of them lies before the range."""
        batch, begin_ns = _without(batch, peaks), self.begin_ns
        if begin_ns is None or not (batch.time_unix_ns < begin_ns).any():
            return batch
        known = batch.duration_ns >= 0
        rest = np.maximum(_ends(batch) - begin_ns, 0)
        clipped = known & (batch.time_unix_ns < begin_ns)
        columns = {
            **batch.columns(),
            "time_unix_ns": np.maximum(batch.time_unix_ns, begin_ns),
            "duration_ns": np.where(clipped, rest, batch.duration_ns),
        }
        return EventBatch(**columns)

    def _begin_range(self) -> EventBatch:
        self._begun = True
        return EventBatch.concat(list(self._before.events(self.begin_ns or 0)))


class _Before:
    """What the events before a range left behind."""

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._places: dict[Place, _State] = {}
        self._starts: dict[Place, int] = {}

    def add(self, batch: EventBatch) -> None:
        """Take the next events."""
        for place, positions in split_by_place(batch):
            self._places.setdefault(place, _State()).add(batch, positions)
        for start in np.flatnonzero(_markers(batch, "start", self._strings)).tolist():
            self._starts[Place(int(batch.rank[start]), int(batch.device[start]))] = int(batch.name[start])

    def events(self, time_unix_ns: int) -> Iterator[EventBatch]:
        """What is live, each place's counters, and that the recording has started, if it has."""
        for place, state in sorted(self._places.items()):
            yield from state.events(place, time_unix_ns)
        for place, name in sorted(self._starts.items()):
            yield EventBatch(
                kind=[EventKind.MARKER],
                time_unix_ns=time_unix_ns,
                duration_ns=0,
                name=name,
                rank=place.rank,
                device=place.device,
            )


class _State:
    """What lives at one place, and its counters as far as they are known."""

    def __init__(self) -> None:
        self._live = LiveSet(_KEPT)
        self._counters: dict[str, int] = {}

    def add(self, batch: EventBatch, positions: Column) -> None:
        self._live.add(batch, positions)
        for name in _COUNTERS:
            values = getattr(batch, name)[positions]
            known = np.flatnonzero(values >= 0)
            if len(known):
                self._counters[name] = int(values[known[-1]])

    def events(self, place: Place, time_unix_ns: int) -> Iterator[EventBatch]:
        live = self._live.live()
        where = {"time_unix_ns": time_unix_ns, "duration_ns": 0, "rank": place.rank, "device": place.device}
        kind = np.full(len(live), EventKind.ALLOCATION, np.uint8)
        yield EventBatch(kind=kind, address=live.address, **where, **live.columns)
        if self._counters:
            yield EventBatch(kind=[EventKind.SAMPLE], **where, **self._counters)


def _ends(batch: EventBatch) -> Column:
    ends: Column = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
    return ends


def _markers(batch: EventBatch, name: str, strings: StringTable) -> Column:
    """Which events are MARKERs of this name."""
    found: Column = (batch.kind == EventKind.MARKER) & (batch.name == (strings.find(name) or 0))
    return found if strings.find(name) is not None else np.zeros(len(batch), bool)


def _without(batch: EventBatch, left_out: Column) -> EventBatch:
    return batch.select(~left_out) if left_out.any() else batch
