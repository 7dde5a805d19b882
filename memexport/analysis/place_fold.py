"""The counters of one place through a recording, and what was live there when they were highest."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.failed_requests import FailedRequests
from memexport.analysis.growth import StepSamples
from memexport.analysis.live import Allocations, Lifetimes, LiveSet
from memexport.analysis.operator_names import OperatorNames
from memexport.analysis.places import Place
from memexport.model import UNKNOWN_SIZE, Column, EventBatch, EventKind, Phase, Tables

COUNTERS: Final = ("allocated", "active", "reserved")

_KNOWN_PHASES: Final = frozenset(Phase) - {Phase.UNKNOWN}

_SIGN: Final[dict[int, int]] = {EventKind.ALLOCATION: 1, EventKind.OPERATOR: 1, EventKind.RELEASE: -1}
"""How an event's size changes the allocated bytes; the other kinds change nothing."""


@dataclass
class Counter:
    """One counter's value at the start, at its highest since then, and last; None while nothing is known."""

    start: int | None = None
    peak: int | None = None
    end: int | None = None

    def restart(self) -> bool:
        """Let the recording start here, at the last known value; whether there is one."""
        self.start = self.peak = self.end
        return self.start is not None

    def start_at(self, value: int, first: int) -> bool:
        """Start at this value, before the first known one; whether that makes it the peak so far."""
        self.start = value
        if value > first:
            self.peak = value
        return value > first

    def add(self, values: Column) -> int | None:
        """Take the values after each event (−1: not known).

        Returns:
            Where they first rise above the peak so far; None if they do not.
        """
        highest = int(values.max(initial=-1))
        if highest < 0:
            return None
        last = int(values[-1])
        self.end = last if last >= 0 else int(values[values >= 0][-1])
        if self.peak is not None and highest <= self.peak:
            return None
        self.peak = highest
        return int(values.argmax())


@dataclass(frozen=True)
class Moment:
    """When a counter was highest, and what happened just then.

    Attributes:
        time_unix_ns: when the event ended, which is when its counters hold.
        operator: that it is named after, see `OperatorNames`; None if none.
        active_bytes, reserved_bytes: the other counters then; None for one that is unknown.
        lifetimes: of the batch that it stands in.
        position: of the event in that batch.
    """

    time_unix_ns: int
    operator: str | None
    module: str | None
    phase: str | None
    active_bytes: int | None
    reserved_bytes: int | None
    lifetimes: Lifetimes
    position: int

    def live(self) -> Allocations:
        """What was live then. Worked out when asked for: most peaks are soon surpassed."""
        return self.lifetimes.live_at(self.position)


class PlaceFold:
    """Folds the events of one place; `SummaryFold` says where the start is.

    Attributes:
        counters: by the names in `COUNTERS`.
        peak: when `allocated` first reached its peak; None while that is unknown.
        live: the allocations here.
        failed_requests: the first ones.
        steps: what was live at the ends of steps.
    """

    def __init__(self, place: Place, tables: Tables) -> None:
        self.place = place
        self.steps = StepSamples()
        self.counters = {name: Counter() for name in COUNTERS}
        self.peak: Moment | None = None
        self.live = LiveSet()
        self.failed_requests = FailedRequests(tables)
        self._tables = tables
        self._operators = OperatorNames(tables.strings)
        self._started: _Started = _Started.NOT

    def start(self, batch: EventBatch, position: int) -> None:
        """Start right before this MARKER if it is of this rank, at the counters that were known last.

        The marker of another device of the rank counts until this one's own comes. Later ones do not.
        """
        rank, device = int(batch.rank[position]), int(batch.device[position])
        if rank not in (-1, self.place.rank):
            return
        started = _Started.HERE if device in (-1, self.place.device) else _Started.ELSEWHERE
        if started <= self._started:
            return
        self._started = started
        lifetimes = self.live.add(batch, np.empty(0, np.int64))
        for name, counter in self.counters.items():
            if counter.restart() and name == "allocated":
                others = self.counters["active"].end, self.counters["reserved"].end
                self.peak = self._moment(batch, position, others, lifetimes)

    def add(self, batch: EventBatch, positions: Column, step_ends: Column) -> None:
        """Take the events at these positions, all of this place; `step_ends`: of those that end its steps."""
        lifetimes = self.live.add(batch, positions)
        for end in step_ends.tolist():
            self._end_step(batch, positions, end, lifetimes)
        self.failed_requests.add(batch, positions, lifetimes, self._last)
        for name, counter in self.counters.items():
            values = getattr(batch, f"{name}_bytes")[positions]
            if counter.start is None and (values >= 0).any():
                first = int(np.argmax(values >= 0))
                self._start_before(name, counter, batch, int(positions[first]), int(values[first]), lifetimes)
            highest = counter.add(values)
            if highest is not None and name == "allocated":
                others = self._others(batch, positions[: highest + 1])
                self.peak = self._moment(batch, int(positions[highest]), others, lifetimes)

    def _end_step(self, batch: EventBatch, positions: Column, end: int, lifetimes: Lifetimes) -> None:
        """Note what is live. Must be called before the counters take the batch."""
        if self.steps.wants_next():
            before = positions[: int(np.searchsorted(positions, end))]
            allocated = self._last("allocated", batch.allocated_bytes[before])
            self.steps.add(int(batch.step[end]), allocated, lifetimes.live_at(end))

    def _start_before(
        self, name: str, counter: Counter, batch: EventBatch, event: int, value: int, lifetimes: Lifetimes
    ) -> None:
        """Start at the first known value less what its event changed."""
        # Bytes are active once they are allocated; reserved ones come by the segment, not with this event.
        moves = name == "allocated" or (name == "active" and value == int(batch.allocated_bytes[event]))
        start = max(0, value - _change(batch, event)) if moves else value
        if counter.start_at(start, value) and name == "allocated":
            time_unix_ns = int(batch.time_unix_ns[event])
            self.peak = Moment(time_unix_ns, None, None, None, None, None, lifetimes, event - 1)

    def _others(self, batch: EventBatch, positions: Column) -> tuple[int | None, int | None]:
        """The counters `active` and `reserved` after the last of these events of the batch being added.

        Must be called before they take the batch.
        """
        active, reserved = batch.active_bytes[positions], batch.reserved_bytes[positions]
        return self._last("active", active), self._last("reserved", reserved)

    def _last(self, name: str, values: Column) -> int | None:
        known = values[values >= 0]
        return int(known[-1]) if len(known) else self.counters[name].end

    def _moment(
        self, batch: EventBatch, event: int, others: tuple[int | None, int | None], lifetimes: Lifetimes
    ) -> Moment:
        strings = self._tables.strings
        operator = int(self._operators.of(batch, np.array([event]))[0])
        return Moment(
            int(batch.time_unix_ns[event]) + max(0, int(batch.duration_ns[event])),
            strings.get(operator),
            strings.get(int(batch.module[event])),
            phase_name(int(batch.phase[event])),
            *others,
            lifetimes,
            event,
        )


class _Started(enum.IntEnum):
    NOT = 0
    ELSEWHERE = 1
    HERE = 2


def phase_name(phase: int) -> str | None:
    """The phase in lower case; None for UNKNOWN and for one that only a later version of the model has."""
    return Phase(phase).name.lower() if phase in _KNOWN_PHASES else None


def _change(batch: EventBatch, event: int) -> int:
    """What the event adds to the allocated bytes; 0 if that is not known."""
    size = int(batch.size_bytes[event])
    return 0 if size == UNKNOWN_SIZE else size * _SIGN.get(int(batch.kind[event]), 0)
