"""Counter values in a Perfetto trace: all of one time in one packet, a slice's own where one begins or ends.

A counter packet costs the importer more than half of what a bare slice does, a value that another packet
carries a quarter of that. So values go with a packet of their time wherever there is one; `docs/decisions.md`
has the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from memexport import wire
from memexport.exporters._perfetto_packets import COUNTER, alike, event_packet, joined

_MOST_CARRIED: Final = 8  # TrackEventData::kMaxNumExtraCounters of the importer
_NOT_CARRIED: Final = -1

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Samples(NamedTuple):
    """Values of one counter, in the order in which it had them."""

    track: int
    time_ns: Ints
    values: Ints


class Moments:
    """What counters say, in groups that one packet can carry.

    A group has values of one time, and no two of one counter: where a counter had several at once, they are
    in several groups, in order. Such groups stay in packets of their own, which keep that order.
    """

    def __init__(self, samples: Sequence[Samples]) -> None:
        """Of each counter at most one `Samples`, so that values of one time and counter lie together."""
        time = _joined([of.time_ns for of in samples])
        track = np.repeat([of.track for of in samples], [len(of.values) for of in samples]).astype(np.int64)
        value = _joined([of.values for of in samples])
        order = np.argsort(time, kind="stable")
        turn = _turns(time[order], track[order])
        if turn.any():
            by_turn = np.lexsort((turn, time[order]))
            order, turn = order[by_turn], turn[by_turn]
        start = _starts(time[order], turn)
        # Zeros last: the importer takes the first zero among the values beside an event for their end.
        order = order[np.argsort(2 * start + (value[order] == 0), kind="stable")]
        time, self._track, self._value = time[order], track[order], value[order]
        self._first = np.flatnonzero((np.arange(len(time)) - start) % _MOST_CARRIED == 0)
        self._time = time[self._first]
        self._count = np.diff(self._first, append=len(time))
        self._shape = 2 * self._count + self._has_negative()
        self._free = np.ones(len(self._first), np.bool_)
        again = np.flatnonzero(self._time[1:] == self._time[:-1])
        self._alone = self._free.copy()
        self._alone[again] = self._alone[again + 1] = False

    def take(self, time_ns: Ints, able: Mask | None = None) -> Ints:
        """Which group each packet is to carry, −1 for none; whoever takes a group must write its `pieces`.

        Args:
            time_ns: of the packets, in any order.
            able: which of them can carry one; None: all.
        """
        carried = np.full(len(time_ns), _NOT_CARRIED)
        if not len(self._time):
            return carried
        place = np.minimum(np.searchsorted(self._time, time_ns), len(self._time) - 1)
        fits = (self._time[place] == time_ns) & self._alone[place] & self._free[place]
        rows = np.flatnonzero(fits if able is None else fits & able)
        carrier = np.full(len(self._time), _NOT_CARRIED)
        carrier[place[rows]] = rows
        taken = np.flatnonzero(carrier != _NOT_CARRIED)
        carried[carrier[taken]] = taken
        self._free[taken] = False
        return carried

    def shape(self, carried: Ints) -> Ints:
        """Small numbers ≥ 0 that are equal for packets whose `pieces` can be alike; 0 for none carried."""
        if not len(self._shape):
            return np.zeros(len(carried), np.int64)
        return np.where(carried == _NOT_CARRIED, 0, self._shape[carried])

    def pieces(self, carried: Ints) -> list[wire.Piece]:
        """The fields of track events of one shape that hold the values of these groups."""
        if carried[0] == _NOT_CARRIED:
            return []
        return self._extra(self._first[carried], range(int(self._count[carried[0]])))

    def encode_rest(self) -> bytes:
        """A counter packet for each group that nobody took."""
        rest = np.flatnonzero(self._free)
        return joined(
            self._time[rest], ((rows, self._records(rest[rows])) for rows in alike(self._shape[rest]))
        )

    def _records(self, groups: Ints) -> wire.Records:
        """Of groups of one shape: the first value is the counter event's own."""
        first = self._first[groups]
        event = [
            *wire.varint_field(9, COUNTER),
            *wire.varint_field(11, self._track[first]),
            *wire.varint_field(30, self._value[first]),
            *self._extra(first, range(1, int(self._count[groups[0]]))),
        ]
        return wire.records(len(groups), event_packet(self._time[groups], event))

    def _extra(self, first: Ints, places: range) -> list[wire.Piece]:
        """Values beside an event, each with its track."""
        pieces: list[wire.Piece] = []
        for place in places:
            pieces += wire.varint_field(31, self._track[first + place])
            pieces += wire.varint_field(12, self._value[first + place])
        return pieces

    def _has_negative(self) -> Mask:
        """Which groups have a value below 0: it takes ten bytes, which the others are spared."""
        if not len(self._first):
            return np.zeros(0, np.bool_)
        lowest: Ints = np.minimum.reduceat(self._value, self._first)
        return lowest < 0


def _joined(columns: Sequence[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *columns])


def _turns(time: Ints, track: Ints) -> Ints:
    """How many values of the same time and counter come before each; these lie together."""
    again = np.zeros(len(time), np.bool_)
    again[1:] = (time[1:] == time[:-1]) & (track[1:] == track[:-1])
    places = np.arange(len(time))
    return places - np.maximum.accumulate(np.where(again, 0, places))


def _starts(time: Ints, turn: Ints) -> Ints:
    """Where the values of the same time and turn begin, for each value; these lie together."""
    new = np.ones(len(time), np.bool_)
    new[1:] = (time[1:] != time[:-1]) | (turn[1:] != turn[:-1])
    starts: Ints = np.maximum.accumulate(np.where(new, np.arange(len(time)), 0))
    return starts
