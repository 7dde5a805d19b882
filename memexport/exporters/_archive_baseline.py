"""What an archive says anew where events were left out: what is live now, and what is not any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memexport.analysis.live import Allocations, LiveSet
from memexport.analysis.pauses import NOT_RECORDED, Pauses
from memexport.analysis.place_fold import COUNTERS
from memexport.analysis.places import Place, split_by_place
from memexport.model import COLUMNS, NULLS, EventBatch, EventKind, StringTable

DROPPED: Final = "dropped"
"""The MARKER after which events are left out, and the SPAN of their time, which ends where others follow."""

_REMEMBERED: Final = ("size_bytes", "category", "module", "name", "stack", "phase", "thread")


@dataclass(frozen=True)
class Snapshot:
    """A recording after some event.

    Attributes:
        time_unix_ns: the latest end of an event until then.
        live: what was live at each place.
        counters: of each place, as in `COUNTERS`; −1 for one that is not known.
        paused: the ranks whose recording had paused.
    """

    time_unix_ns: int
    live: Mapping[Place, Allocations]
    counters: Mapping[Place, tuple[int, ...]]
    paused: frozenset[int]


class SnapshotFold:
    """Takes the batches of a recording in order. Memory grows with what is live at once."""

    def __init__(self, strings: StringTable) -> None:
        self._live: dict[Place, LiveSet] = {}
        self._counters: dict[Place, list[int]] = {}
        self._pauses = Pauses(strings)
        self._time_unix_ns = 0

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        self._pauses.read(batch)
        ends = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
        self._time_unix_ns = max(self._time_unix_ns, int(ends.max(initial=0)))
        for place, positions in split_by_place(batch):
            self._live.setdefault(place, LiveSet(_REMEMBERED)).add(batch, positions)
            # Markers repeat what their neighbours say, and "peak" comes when all is over.
            positions = positions[batch.kind[positions] != EventKind.MARKER]
            counters = self._counters.setdefault(place, [-1] * len(COUNTERS))
            for index, name in enumerate(COUNTERS):
                values = getattr(batch, f"{name}_bytes")[positions]
                known = values[values >= 0]
                counters[index] = int(known[-1]) if len(known) else counters[index]

    def snapshot(self) -> Snapshot:
        """How it is now."""
        return Snapshot(
            self._time_unix_ns,
            {place: live.live() for place, live in self._live.items()},
            {place: tuple(counters) for place, counters in self._counters.items()},
            self._pauses.paused,
        )


def baseline(before: Snapshot, after: Snapshot, strings: StringTable) -> EventBatch:
    """The events that lead from one to the other, for a reader who sees none of those between.

    What is gone is released, then what is new allocated, without counters: they are in a SAMPLE of each place
    that follows. `strings` must know `DROPPED`.
    """
    parts = list(_moves(before, after))
    name, took = strings.find(DROPPED) or 0, after.time_unix_ns - before.time_unix_ns
    ranks = {place.rank for place in after.live} or {-1}
    marks: list[dict[str, int]] = []
    for rank in sorted(ranks):
        common = {"name": name, "rank": rank, "time_unix_ns": before.time_unix_ns}
        marks.append({"kind": EventKind.SPAN, "duration_ns": took, **common})
        if (rank in before.paused) != (rank in after.paused):
            marks.append(_turn(rank, after, strings))
    for place, counters in sorted(after.counters.items()):
        known = {f"{each}_bytes": value for each, value in zip(COUNTERS, counters, strict=True)}
        marks.append(_at(place, after, {"kind": EventKind.SAMPLE, **known}))
    first = [{"kind": EventKind.MARKER, "name": name, "rank": rank, "time_unix_ns": before.time_unix_ns}
             for rank in sorted(ranks)]  # fmt: skip
    return EventBatch.concat([_rows(first), *parts, _rows(marks)])


def _turn(rank: int, after: Snapshot, strings: StringTable) -> dict[str, int]:
    """That recording paused, or went on, in between."""
    kind = EventKind.MARKER if rank in after.paused else EventKind.SPAN
    name = strings.find(NOT_RECORDED) or 0
    return {"kind": kind, "duration_ns": 0, "name": name, "rank": rank, "time_unix_ns": after.time_unix_ns}


def _moves(before: Snapshot, after: Snapshot) -> Iterator[EventBatch]:
    for place, live in sorted(after.live.items(), key=lambda item: item[0]):
        was = before.live.get(place, Allocations.none(_REMEMBERED))
        gone, new = _without(was, live), _without(live, was)
        for kind, moved in ((EventKind.RELEASE, gone), (EventKind.ALLOCATION, new)):
            columns = dict(moved.columns)
            if kind == EventKind.RELEASE:
                del columns["stack"], columns["name"], columns["module"]
            yield EventBatch(
                kind=np.full(len(moved), kind, np.uint8),
                address=moved.address,
                **_at(place, after, {"duration_ns": 0}),
                **columns,
            )


def _at(place: Place, snapshot: Snapshot, values: dict[str, Any]) -> dict[str, Any]:
    when = {"time_unix_ns": snapshot.time_unix_ns, "rank": place.rank, "device": place.device}
    return {"duration_ns": 0, **when, **values}


def _without(ours: Allocations, theirs: Allocations) -> Allocations:
    """Our rows that they do not have just so."""
    if not len(theirs):
        return ours
    index = np.minimum(np.searchsorted(theirs.address, ours.address), len(theirs) - 1)
    same = theirs.address[index] == ours.address
    for name, column in ours.columns.items():
        same &= theirs.columns[name][index] == column
    return ours.take(~same)


def _rows(rows: list[dict[str, int]]) -> EventBatch:
    return EventBatch(
        **{
            name: np.array(
                [row.get(name, 0 if name == "duration_ns" else NULLS[name]) for row in rows], dtype
            )
            for name, dtype in COLUMNS.items()
        }
    )
