"""When a device's counters changed: what a trace draws of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from memexport.model import EventBatch, EventKind

CounterName = Literal["allocated", "active", "reserved"]
COUNTER_NAMES: Final[tuple[CounterName, ...]] = ("allocated", "active", "reserved")

HIGHEST_EXACT: Final = 2**53
"""Trace viewers keep counters as doubles: above this they would show another number."""


class CounterKey(NamedTuple):
    """One counter; `rank` and `device` as in the columns, −1 where unknown."""

    rank: int
    device: int
    name: CounterName


class DeviceChanges(NamedTuple):
    """The moments at which some counter of a device changed.

    Attributes:
        time_ns: of each change.
        counters: for each counter that changes at all: its values, and at which of the moments it changed.
    """

    time_ns: npt.NDArray[np.int64]
    counters: Mapping[CounterKey, tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]]


class CounterChanges:
    """Follows every counter through a recording.

    Attributes:
        clipped_values: how many values above `HIGHEST_EXACT` were lowered to it.
    """

    def __init__(self) -> None:
        self._last: dict[CounterKey, int] = {}
        self.clipped_values = 0

    def of(self, batch: EventBatch, time_ns: npt.NDArray[np.int64]) -> Iterator[DeviceChanges]:
        """What changes in the batch, device by device; unknown values are no change.

        Markers are passed over: they repeat what their neighbours say, and "peak" comes when all is over.
        """
        names = [name for name in COUNTER_NAMES if getattr(batch, f"{name}_bytes").max(initial=-1) >= 0]
        if not names:
            return
        for rank, device, rows in _by_device(batch, batch.kind != EventKind.MARKER):
            changed = {}
            for name in names:
                key = CounterKey(rank, device, name)
                values = getattr(batch, f"{name}_bytes")[rows]
                changed[key] = values, self._changed(key, values)
            anywhere = np.logical_or.reduce([where for _, where in changed.values()])
            counters = {
                key: (self._clip(values[anywhere]), where[anywhere])
                for key, (values, where) in changed.items()
                if where.any()
            }
            if counters:
                yield DeviceChanges(time_ns[rows][anywhere], counters)

    def _changed(self, key: CounterKey, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        known = np.flatnonzero(values >= 0)
        changed = np.zeros(len(values), np.bool_)
        if len(known):
            previous = np.concatenate(([self._last.get(key, -1)], values[known[:-1]]))
            changed[known] = values[known] != previous
            self._last[key] = int(values[known[-1]])
        return changed

    def _clip(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        self.clipped_values += int((values > HIGHEST_EXACT).sum())
        clipped: npt.NDArray[np.int64] = np.minimum(values, HIGHEST_EXACT)
        return clipped


def _by_device(
    batch: EventBatch, counted: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, int, npt.NDArray[np.bool_]]]:
    """The rows of every device of every rank."""
    devices = batch.rank.astype(np.int64) << 32 | batch.device.astype(np.int64) + 1
    for code in np.unique(devices[counted]).tolist():
        yield code >> 32, (code & 0xFFFFFFFF) - 1, counted & (devices == code)
