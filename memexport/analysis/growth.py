"""What grows from step to step: live bytes at the same point of each step, and how steadily they rise.

The point is the end of a step. The first step is left out: what is made once, gradients and optimizer state,
is made in it. The slope is the median of the slopes between all pairs of steps (Theil 1950, Sen 1968), so
that a few odd steps, an evaluation or a checkpoint written, do not move it.

Growth is called suspicious if all of this holds:

- at least three steps ended with more than the one before (`LEAST_RISES`);
- all falls together are at most a tenth of all rises together (`MOST_FALLS`), so what comes and goes is none;
- the slope is at least 1 KiB a step (`LEAST_SLOPE_BYTES`): a list of losses is not what fills a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from memexport.analysis.breakdown import module_sums
from memexport.analysis.live import Allocations
from memexport.model import Column, StringTable

MOST_SAMPLES: Final = 128
"""How many steps are compared: of more, every second, fourth, ... so that memory and time stay bounded."""

LEAST_SAMPLES: Final = 3
"""Fewer steps after the first say nothing about growth."""

LEAST_RISES: Final = 3
MOST_FALLS: Final = 0.1
LEAST_SLOPE_BYTES: Final = 1024


@dataclass(frozen=True)
class Trend:
    """How live bytes went over the steps compared.

    Attributes:
        bytes_per_step: the slope.
        rises: how many of the steps compared ended with more than the one before.
        first_bytes: at the end of the first step compared; `last_bytes` of the last.
        is_suspicious: whether it is a leak by the rule above.
    """

    bytes_per_step: int
    rises: int
    first_bytes: int
    last_bytes: int
    is_suspicious: bool


@dataclass(frozen=True)
class ModuleTrend:
    """The trend of what a module's allocations hold; module None: nothing says whose bytes these are."""

    module: str | None
    trend: Trend


@dataclass(frozen=True)
class DeviceGrowth:
    """How a device's live bytes went.

    Attributes:
        steps_compared: how many; at least `LEAST_SAMPLES`.
        total: of all that is allocated.
        suspects: the modules whose growth is suspicious, the steepest first.
    """

    steps_compared: int
    total: Trend
    suspects: tuple[ModuleTrend, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the summary's public JSON has it."""
        total = asdict(self.total)
        modules = [{"module": row.module, **asdict(row.trend)} for row in self.suspects]
        for row in modules:
            del row["is_suspicious"]
        suspicious = total.pop("is_suspicious")
        return {"steps_compared": self.steps_compared, **total, "suspicious": suspicious, "modules": modules}


@dataclass(frozen=True)
class _Sample:
    """One step's end: all bytes, and those of each module by its string id."""

    step: int
    total_bytes: int
    module_bytes: Mapping[int, int]


class StepSamples:
    """Keeps what was live at the ends of at most `MOST_SAMPLES` steps, evenly spread, after the first."""

    def __init__(self) -> None:
        self._ended = 0
        self._stride = 1
        self._kept: list[_Sample] = []

    def wants_next(self) -> bool:
        """Count a step that ends; whether what is live then is to be given to `add`."""
        step, self._ended = self._ended, self._ended + 1
        return step > 0 and (step - 1) % self._stride == 0

    def add(self, step: int, allocated_bytes: int | None, live: Allocations) -> None:
        """Keep what is live at the end of this step; only some steps of a long run may have been recorded.

        `allocated_bytes` is what the device counts; what it has beyond the allocations is of no module. None
        where it does not count.
        """
        sums = module_sums(live, allocated_bytes)
        total = sum(sums.values()) if allocated_bytes is None else allocated_bytes
        latest = self._kept[-1].step if self._kept else -1
        self._kept.append(_Sample(max(step, latest + 1), total, sums))
        if len(self._kept) > MOST_SAMPLES:
            self._kept = self._kept[::2]
            self._stride *= 2

    def growth(self, strings: StringTable, most: int) -> DeviceGrowth | None:
        """What comes of them, with at most so many suspects; None with too few steps."""
        if len(self._kept) < LEAST_SAMPLES:
            return None
        steps = np.array([sample.step for sample in self._kept])
        total = trend(steps, np.array([sample.total_bytes for sample in self._kept]))
        suspects = [
            ModuleTrend(module, found)
            for module, sizes in _by_module(self._kept, strings).items()
            if (found := trend(steps, sizes)).is_suspicious
        ]
        suspects.sort(key=lambda row: (-row.trend.bytes_per_step, row.module or ""))
        return DeviceGrowth(len(steps), total, tuple(suspects[:most]))


def trend(steps: Column, sizes: Column) -> Trend:
    """The trend of bytes at the ends of these steps, at least two, ascending."""
    changes = np.diff(sizes)
    rises, falls = changes[changes > 0], changes[changes < 0]
    slope = _median_slope(steps, sizes)
    return Trend(
        bytes_per_step=slope,
        rises=len(rises),
        first_bytes=int(sizes[0]),
        last_bytes=int(sizes[-1]),
        is_suspicious=bool(
            len(rises) >= LEAST_RISES
            and slope >= LEAST_SLOPE_BYTES
            and -int(falls.sum()) <= MOST_FALLS * int(rises.sum())
        ),
    )


def _median_slope(steps: Column, sizes: Column) -> int:
    """Theil and Sen's, to the nearest byte."""
    if (sizes == sizes[0]).all():
        return 0
    first, second = np.triu_indices(len(steps), 1)
    return round(float(np.median((sizes[second] - sizes[first]) / (steps[second] - steps[first]))))


def _by_module(samples: Sequence[_Sample], strings: StringTable) -> Mapping[str | None, Column]:
    """The bytes of each module in every sample, 0 where it holds none."""
    rows: dict[str | None, Column] = {}
    for index, sample in enumerate(samples):
        for module, size in sample.module_bytes.items():
            # Two numbers of a file's table may stand for one name.
            rows.setdefault(strings.get(module), np.zeros(len(samples), np.int64))[index] += size
    return rows
