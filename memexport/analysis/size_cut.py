"""Leaves small allocations out of a stream of events, without a dent in its counters."""

from __future__ import annotations

from typing import Final

import numpy as np

from memexport.analysis.live import NEVER, Lifetimes, LiveSet
from memexport.analysis.places import Place, split_by_place
from memexport.model import NULLS, UNKNOWN_SIZE, Column, EventBatch, EventKind

_COUNTERS: Final = ("allocated_bytes", "active_bytes", "reserved_bytes")
_OF_ALLOCATION: Final = ("name", "stack", "category", "size_bytes", "address")
"""The columns that speak of an allocation: null in the SAMPLE that is left of it."""

_REMEMBERED: Final = ("size_bytes", "category", "name")


class SizeCut:
    """Takes the batches of a recording in order and gives them without allocations below a size.

    Such an ALLOCATION and its RELEASE become SAMPLE events, or nothing where no counter is known. What is of
    unknown size is kept.

    Attributes:
        lacks_small: whether there were any.
    """

    def __init__(self, min_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._places: dict[Place, _Place] = {}
        self.lacks_small = False

    def take(self, batch: EventBatch) -> EventBatch:
        """The events of the batch, fewer and changed."""
        small = self._is_small(batch.size_bytes)
        small &= (batch.kind == EventKind.ALLOCATION) | (batch.kind == EventKind.RELEASE)
        unseen, firsts = [], []
        for place, positions in split_by_place(batch):
            here = self._places.setdefault(place, _Place())
            unseen.append(self._pair(batch, *_ended(here.live.add(batch, positions)), small))
            firsts += here.first_counts(batch, positions)
        if not small.any():
            return batch
        self.lacks_small = True
        before = [(event, _sample_before(batch, event, name)) for event, name in firsts if small[event]]
        for ends, ended in unseen:
            small[ends] = False
            batch = _with_releases(batch, ends, ended)
        return _sampled(batch, small, before)

    def _pair(
        self, batch: EventBatch, ends: Column, ended: dict[str, Column], small: Column
    ) -> tuple[Column, dict[str, Column]]:
        """Let releases be as small as what they release.

        Returns:
            The small allocations that end larger ones, whose release was not seen; and what they end.
        """
        releases = batch.kind[ends] == EventKind.RELEASE
        ended_small = self._is_small(ended["size_bytes"])
        # What a release gives back, its allocation says; its own size may be missing or wrong.
        small[ends[releases]] = ended_small[releases]
        unseen = ~releases & ~ended_small & small[ends]
        return ends[unseen], {name: column[unseen] for name, column in ended.items()}

    def _is_small(self, size_bytes: Column) -> Column:
        small: Column = (size_bytes < self._min_bytes) & (size_bytes != UNKNOWN_SIZE)
        return small


class _Place:
    """What lives at one place, and which of its counters were known at some event."""

    def __init__(self) -> None:
        self.live = LiveSet(_REMEMBERED)
        self._unknown = ["allocated_bytes", "active_bytes"]

    def first_counts(self, batch: EventBatch, positions: Column) -> list[tuple[int, str]]:
        """The event at which each of these counters is known for the first time, if it is one of these."""
        found = []
        for name in list(self._unknown):
            known = positions[getattr(batch, name)[positions] >= 0]
            if len(known):
                self._unknown.remove(name)
                found.append((int(known[0]), name))
        return found


def _ended(lifetimes: Lifetimes) -> tuple[Column, dict[str, Column]]:
    """Where allocations end in a batch, and what was remembered of each."""
    old, new = lifetimes.carried_end != NEVER, lifetimes.born_end != NEVER
    carried, born = lifetimes.carried.columns, lifetimes.born.columns
    ends = np.concatenate((lifetimes.carried_end[old], lifetimes.born_end[new]))
    return ends, {name: np.concatenate((carried[name][old], born[name][new])) for name in carried}


def _with_releases(batch: EventBatch, ends: Column, ended: dict[str, Column]) -> EventBatch:
    """Let these small allocations be releases instead: of larger ones, at their addresses.

    The release of the larger ones was not seen. Without the small ones, nothing would end them.
    """
    if not len(ends):
        return batch
    columns = {name: getattr(batch, name).copy() for name in ("kind", "stack", *ended)}
    columns["kind"][ends] = EventKind.RELEASE
    columns["stack"][ends] = NULLS["stack"]
    for name, values in ended.items():
        columns[name][ends] = values
    return EventBatch(**{**batch.columns(), **columns})


def _sample_before(batch: EventBatch, event: int, counter: str) -> EventBatch:
    """The counter right before the event, which is where a recording without a MARKER "start" starts.

    It follows from the event's size, which a SAMPLE in its place does not tell any more. An active counter
    moves with the allocated one where the two are the same.
    """
    value, size = int(getattr(batch, counter)[event]), int(batch.size_bytes[event])
    change = 0 if size == UNKNOWN_SIZE or value != int(batch.allocated_bytes[event]) else size
    before = value + (change if batch.kind[event] == EventKind.RELEASE else -change)
    where = {name: int(getattr(batch, name)[event]) for name in ("time_unix_ns", "device", "rank")}
    return EventBatch(kind=[EventKind.SAMPLE], duration_ns=0, **where, **{counter: max(0, before)})


def _sampled(batch: EventBatch, small: Column, before: list[tuple[int, EventBatch]]) -> EventBatch:
    """The batch with samples of the counters instead of the small events, where any is known."""
    columns = batch.columns()
    for name in _OF_ALLOCATION:
        columns[name] = np.where(small, columns[name].dtype.type(NULLS[name]), columns[name])
    columns["kind"] = np.where(small, np.uint8(EventKind.SAMPLE), columns["kind"])
    batch, kept = EventBatch(**columns), ~small
    for name in _COUNTERS:
        kept |= columns[name] >= 0
    parts, done = [], 0
    for event, sample in sorted(before, key=lambda pair: pair[0]):
        parts += [batch.select(slice(done, event)).select(kept[done:event]), sample]
        done = event
    rest = batch.select(slice(done, None)).select(kept[done:])
    return EventBatch.concat([*parts, rest]) if parts else rest
