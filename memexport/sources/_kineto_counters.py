"""What each device has allocated after every event of a trace: as the file says, or else as it adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.sources._kineto_events import Rows
from memexport.sources._kineto_kinds import Role

_UNKNOWN: Final = -1

Ints = npt.NDArray[np.int64]


def lowest_sums(blocks: Iterable[Rows], devices: Collection[int]) -> dict[int, int]:
    """The least sum of all changes so far, 0 at the start, of each of these devices."""
    sums, lowest = dict.fromkeys(devices, 0), dict.fromkeys(devices, 0)
    for rows in blocks:
        for device, places in _changes(rows):
            if device in sums:
                running = sums[device] + np.cumsum(rows["bytes"][places])
                sums[device], lowest[device] = int(running[-1]), min(lowest[device], int(running.min()))
    return lowest


class Counters:
    """Gives each "[memory]" event the bytes that its device has allocated right after it.

    Attributes:
        contradictions: how often a device's total was not the one before with the change in between.
    """

    def __init__(self, lowest: dict[int, int]) -> None:
        """Count the devices of `lowest` from the least that they had; the others say their totals."""
        self.contradictions: Counter[int] = Counter()
        self._sums = {device: -least for device, least in lowest.items()}
        self._totals: dict[int, int] = {}

    def allocated(self, rows: Rows) -> Ints:
        """The bytes after each row, −1 where that is not known; rows come in the order of time."""
        allocated = np.full(len(rows), _UNKNOWN, np.int64)
        for device, places in _changes(rows):
            changes, totals = rows["bytes"][places], rows["total"][places]
            if device in self._sums:
                totals = self._sums[device] + np.cumsum(changes)
                self._sums[device] = int(totals[-1])
            else:
                self._check(device, changes, totals)
            allocated[places] = totals
        return allocated

    def _check(self, device: int, changes: Ints, totals: Ints) -> None:
        before = np.concatenate(([self._totals.get(device, _UNKNOWN)], totals[:-1]))
        known = (before != _UNKNOWN) & (totals != _UNKNOWN)
        self.contradictions[device] += int(np.count_nonzero(known & (before + changes != totals)))
        self._totals[device] = int(totals[-1])


def _changes(rows: Rows) -> Iterator[tuple[int, Ints]]:
    """Each device that memory of was allocated or released, and the places of the rows that say so."""
    places = np.flatnonzero(rows["kind"] == Role.MEMORY)
    devices = rows["device"][places]
    for device in np.unique(devices).tolist():
        yield device, places[devices == device]
