"""When a device's counters changed: what a trace draws of them."""

from __future__ import annotations

from collections.abc import Iterator
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


class Changes(NamedTuple):
    """The values of one counter at the moments at which it changed."""

    counter: CounterKey
    time_ns: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]


class CounterChanges:
    """Follows every counter through a recording.

    On a CPU, and wherever nothing waits for a stream, `active` is always what `allocated` is, and a second
    curve would only be in the way. So `active` is left out up to the first event at which it differs; a
    curve of it that begins there was the same as `allocated` before.

    Attributes:
        clipped_values: how many values above `HIGHEST_EXACT` were lowered to it.
    """

    def __init__(self) -> None:
        self._last: dict[CounterKey, int] = {}
        self.clipped_values = 0

    def of(self, batch: EventBatch, time_ns: npt.NDArray[np.int64]) -> Iterator[Changes]:
        """What changes in the batch, counter by counter; unknown values are no change.

        Markers are passed over: they repeat what their neighbours say, and "peak" comes when all is over.
        """
        names = [name for name in COUNTER_NAMES if getattr(batch, f"{name}_bytes").max(initial=-1) >= 0]
        if not names:
            return
        for rank, device, rows in _by_device(batch, batch.kind != EventKind.MARKER):
            allocated = batch.allocated_bytes[rows]
            for name in names:
                key = CounterKey(rank, device, name)
                values = getattr(batch, f"{name}_bytes")[rows]
                if name == "active" and key not in self._last:
                    values = _from_first_difference(values, allocated)
                changed = self._changed(key, values)
                if len(changed):
                    yield Changes(key, time_ns[rows[changed]], self._clip(values[changed]))

    def _changed(self, key: CounterKey, values: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """Where the counter has another value than before."""
        known = np.flatnonzero(values >= 0) if values.min(initial=0) < 0 else np.arange(len(values))
        if not len(known):
            return known
        changed = np.diff(values[known], prepend=self._last.get(key, -1)) != 0
        self._last[key] = int(values[known[-1]])
        where: npt.NDArray[np.intp] = known[changed]
        return where

    def _clip(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        self.clipped_values += int((values > HIGHEST_EXACT).sum())
        clipped: npt.NDArray[np.int64] = np.minimum(values, HIGHEST_EXACT)
        return clipped


def _from_first_difference(active: npt.NDArray[Any], allocated: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`active`, unknown up to where it first differs from `allocated`."""
    differs = (active >= 0) & (active != allocated)
    first = int(differs.argmax()) if differs.any() else len(active)
    return np.where(np.arange(len(active)) < first, -1, active)


def _by_device(
    batch: EventBatch, counted: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, int, npt.NDArray[np.intp]]]:
    """The rows of every device of every rank."""
    devices = batch.rank.astype(np.int64) << 32 | batch.device.astype(np.int64) + 1
    rows = np.flatnonzero(counted)
    # Two values, those of "no device" and of the only one, are what most batches have.
    low, high = int(devices.min(initial=2**63 - 1)), int(devices.max(initial=-(2**63)))
    codes = sorted({low, high}) if high - low <= 1 else np.unique(devices[rows]).tolist()
    for code in codes:
        of_device = rows[devices[rows] == code]
        if len(of_device):
            yield code >> 32, (code & 0xFFFFFFFF) - 1, of_device
