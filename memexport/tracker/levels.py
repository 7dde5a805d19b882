"""How much was allocated at most since somebody last asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from memexport.analysis.places import split_by_place
from memexport.model import NULLS, EventBatch, EventKind, StringTable
from memexport.tracker.assemble import START

_UNKNOWN: Final = NULLS["allocated_bytes"]


class Levels:
    """Takes the batches of one process in order; `take` may be called at any time between them."""

    def __init__(self, devices: Sequence[object], strings: StringTable) -> None:
        self._devices = devices
        self._strings = strings
        self._now: dict[int, int] = {}
        self._highest: dict[int, int] = {}

    def add(self, batch: EventBatch) -> None:
        """Take the next batch. What lives before the MARKER "start" is only registered there."""
        starts = (batch.kind == EventKind.MARKER) & (batch.name == self._strings.find(START))
        if self._strings.find(START) is None or not starts.any():
            self._add(batch)
            return
        is_after = np.maximum.accumulate(starts)
        self._add(batch.select(~is_after))
        self._highest = dict(self._now)
        self._add(batch.select(is_after))

    def _add(self, batch: EventBatch) -> None:
        for place, positions in split_by_place(batch):
            # Markers repeat what their neighbours say, and "peak" comes when all is over.
            counted = positions[batch.kind[positions] != EventKind.MARKER]
            known = batch.allocated_bytes[counted]
            known = known[known != _UNKNOWN]
            if len(known):
                highest = self._highest.get(place.device, _UNKNOWN)
                self._highest[place.device] = max(highest, int(known.max()))
                self._now[place.device] = int(known[-1])

    def take(self) -> dict[str, int]:
        """Bytes per device, by its name; what is allocated now is where the next maximum begins."""
        taken = {str(self._devices[index]): highest for index, highest in sorted(self._highest.items())}
        self._highest = dict(self._now)
        return taken
