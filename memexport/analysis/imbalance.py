"""How evenly the ranks of a run use memory: who peaks highest and lowest, who is the odd one out, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from memexport.analysis.places import Place
from memexport.model import Column, EventBatch, Phase

LISTED: Final = 10
"""How many ranks a comparison lists; of more, the highest, the lowest and those around the median."""

_ODD_DEVIATIONS: Final = 6
"""How many times the median absolute deviation a rank must be away to be odd: of normally distributed peaks,
four standard deviations. Of two ranks neither is, and of three only one that is six times as far from the
median as the other."""

_ODD_SHARE: Final = 100
"""One part in this many of the median is the least difference that is worth a word."""


@dataclass(frozen=True)
class RankPeak:
    """The highest that a rank's memory went on one type of device.

    Attributes:
        device: of its devices of this type, the one that peaked highest, as the summary calls it:
            "rank 3 cuda:0".
        peak: bytes allocated.
        peak_phase: the part of the step in which that was; None if it is not known.
        categories: bytes by category at that moment; they add up to the peak.
        phases: the most bytes allocated in each phase.
    """

    rank: int
    device: str
    peak: int
    peak_phase: str | None
    categories: Mapping[str, int]
    phases: Mapping[str, int]


@dataclass(frozen=True)
class Difference:
    """What two ranks have of one category or in one phase, in bytes."""

    name: str
    bytes: int
    than_bytes: int


@dataclass(frozen=True)
class RankDifference:
    """One rank next to another.

    Attributes:
        rank: the odd one; if there is none, the one with the highest peak.
        than_rank: the one whose peak is nearest to the median; if none is odd, the one with the lowest.
        bytes: how much higher `rank` peaks; negative: lower.
        categories: where they differ at their peaks, the largest difference first.
        phases: where they differ in the most that was allocated in a phase.
    """

    rank: int
    than_rank: int
    bytes: int
    categories: tuple[Difference, ...]
    phases: tuple[Difference, ...]


@dataclass(frozen=True)
class Imbalance:
    """The peaks of all ranks on one type of device, in bytes.

    Attributes:
        ranks: how many there are.
        median: of the peaks; the mean of the two in the middle, rounded down.
        spread: the highest less the lowest.
        deviation: the median of how far the peaks are from their median.
        odd_rank: the one that is farthest from the median, if that is much farther than the others are and at
            least a hundredth of the median; else None.
        peaks: all of up to `LISTED` ranks by rank; of more, the highest, those around the median and the
            lowest, the highest first.
        difference: what the odd rank has more of; None where no rank differs by a hundredth of the median.
    """

    ranks: int
    median: int
    spread: int
    deviation: int
    odd_rank: int | None
    peaks: tuple[RankPeak, ...]
    difference: RankDifference | None

    def to_dict(self) -> dict[str, Any]:
        """As `memexport summary --json` has it under "ranks"."""
        fields = asdict(self)
        fields["peaks"] = list(fields["peaks"])
        if fields["difference"] is not None:
            for name in ("categories", "phases"):
                fields["difference"][name] = list(fields["difference"][name])
        return fields


class PhasePeaks:
    """The most bytes allocated on each device of each rank, by phase."""

    def __init__(self) -> None:
        self._highest: dict[Place, Column] = {}

    def add(self, place: Place, batch: EventBatch, positions: Column) -> None:
        """Take the events at these positions, all of this place."""
        highest = self._highest.setdefault(place, np.full(256, -1, np.int64))
        np.maximum.at(highest, batch.phase[positions], batch.allocated_bytes[positions])

    def of(self, place: Place) -> dict[str, int]:
        """By the phase's name in lower case, without those that did not occur."""
        highest = self._highest.get(place)
        if highest is None:
            return {}
        known = [phase for phase in Phase if phase != Phase.UNKNOWN and highest[phase] >= 0]
        return {phase.name.lower(): int(highest[phase]) for phase in known}


def compare(peaks: Iterable[tuple[str, RankPeak]]) -> dict[str, Imbalance]:
    """The ranks by type of device ("cuda"), which each peak comes with; of those that several ranks have."""
    highest: dict[str, dict[int, RankPeak]] = {}
    for device_type, peak in peaks:
        of_type = highest.setdefault(device_type, {})
        if peak.rank not in of_type or peak.peak > of_type[peak.rank].peak:
            of_type[peak.rank] = peak
    return {name: _imbalance(list(of.values())) for name, of in sorted(highest.items()) if len(of) > 1}


def _imbalance(peaks: Sequence[RankPeak]) -> Imbalance:
    ordered = sorted(peaks, key=lambda peak: (-peak.peak, peak.rank))
    sizes = np.array([peak.peak for peak in ordered], np.int64)
    median = int(np.median(sizes))
    distances = np.abs(sizes - median)
    deviation = int(np.median(distances))
    farthest = int(distances.argmax())
    spread, distance = int(sizes[0] - sizes[-1]), int(distances[farthest])
    is_odd = distance > _ODD_DEVIATIONS * deviation and distance * _ODD_SHARE >= median
    pair = (farthest, int(distances.argmin())) if is_odd else (0, -1)
    differs = spread > 0 and spread * _ODD_SHARE >= median
    return Imbalance(
        ranks=len(ordered),
        median=median,
        spread=spread,
        deviation=deviation,
        odd_rank=ordered[farthest].rank if is_odd else None,
        peaks=_listed(ordered),
        difference=_difference(*(ordered[place] for place in pair)) if differs else None,
    )


def _listed(ordered: Sequence[RankPeak]) -> tuple[RankPeak, ...]:
    if len(ordered) <= LISTED:
        return tuple(sorted(ordered, key=lambda peak: peak.rank))
    ends, middle = (LISTED - 2) // 2, len(ordered) // 2
    return (*ordered[:ends], *ordered[middle - 1 : middle + 1], *ordered[-ends:])


def _difference(one: RankPeak, other: RankPeak) -> RankDifference:
    return RankDifference(
        rank=one.rank,
        than_rank=other.rank,
        bytes=one.peak - other.peak,
        categories=_differences(one.categories, other.categories),
        phases=_differences(one.phases, other.phases),
    )


def _differences(one: Mapping[str, int], other: Mapping[str, int]) -> tuple[Difference, ...]:
    rows = [Difference(name, one.get(name, 0), other.get(name, 0)) for name in {**one, **other}]
    differing = [row for row in rows if row.bytes != row.than_bytes]
    return tuple(sorted(differing, key=lambda row: (-abs(row.bytes - row.than_bytes), row.name)))
