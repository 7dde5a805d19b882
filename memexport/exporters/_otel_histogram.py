"""Distributions of many values, kept exactly or in base-2 exponential buckets.

https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_BUCKETS: Final = 160
MAX_SCALE: Final = 20
"""What OpenTelemetry's SDKs use unless told otherwise."""

Values = npt.NDArray[Any]

_FEW: Final = 4096


class Tally:
    """Distinct values and how often each occurred. Memory grows with the distinct values, which repeat."""

    def __init__(self) -> None:
        self._values: Values = np.empty(0)
        self._counts = np.empty(0, np.int64)
        self._new: list[tuple[Values, Values]] = []
        self._new_count = 0

    def add(self, values: Values) -> None:
        """Count these values."""
        if len(values):
            self.add_counted(*np.unique(values, return_counts=True))

    def add_counted(self, values: Values, counts: Values) -> None:
        """Count distinct values as often as that."""
        self._new.append((values, counts))
        self._new_count += len(values)
        # Sorting again only when there is twice as much keeps the price of a value the same.
        if self._new_count > max(_FEW, len(self._values)):
            self._merge()

    @property
    def counted(self) -> tuple[Values, Values]:
        """The distinct values, ascending, and how often each occurred."""
        if self._new:
            self._merge()
        return self._values, self._counts

    def __bool__(self) -> bool:
        return bool(self._new) or len(self._values) > 0

    def _merge(self) -> None:
        parts = [(self._values, self._counts), *self._new] if len(self._values) else self._new
        values, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._values, where = np.unique(values, return_inverse=True)
        self._counts = np.bincount(where, counts).astype(np.int64)
        self._new, self._new_count = [], 0


@dataclass(frozen=True)
class Buckets:
    """An exponential histogram as a point of it is exported.

    Attributes:
        scale: bucket i holds the values in (base^i, base^(i+1)], where base is 2^(2^-scale).
        offset: the index of the first bucket.
        counts: of the buckets, none before the first value and none after the last.
        zeros: how many values were 0.
    """

    count: int
    sum: float
    min: float
    max: float
    scale: int
    zeros: int
    offset: int
    counts: tuple[int, ...]


class ExponentialHistogram:
    """Values ≥ 0 in at most `MAX_BUCKETS` buckets, which get wider when they would not do."""

    def __init__(self) -> None:
        self._count = self._zeros = 0
        self._sum = 0.0
        self._min, self._max = np.inf, -np.inf
        self._scale, self._offset = MAX_SCALE, 0
        self._counts = np.empty(0, np.int64)
        self._buckets: Buckets | None = None

    def add(self, tally: Tally) -> None:
        """Count what the tally counted."""
        if not tally:
            return
        values, counts = tally.counted
        self._buckets = None
        self._count += int(counts.sum())
        self._sum += float(values.astype(np.float64) @ counts)
        self._min, self._max = min(self._min, float(values[0])), max(self._max, float(values[-1]))
        positive = values > 0
        self._zeros += int(counts[~positive].sum())
        if positive.any():
            self._count_in(_indices(values[positive]), counts[positive])

    def buckets(self) -> Buckets:
        """All values so far; the same object until there are more.

        Without a positive value the scale is 0, as the SDKs have it.
        """
        if self._buckets is None:
            scale = self._scale if len(self._counts) else 0
            counts = tuple(self._counts.tolist())
            self._buckets = Buckets(
                self._count, self._sum, self._min, self._max, scale, self._zeros, self._offset, counts
            )
        return self._buckets

    def _count_in(self, indices: Values, counts: Values) -> None:
        """Count by bucket indices of the finest scale, ascending."""
        indices = indices >> (MAX_SCALE - self._scale)
        low, high = int(indices[0]), int(indices[-1])
        if len(self._counts):
            low, high = min(low, self._offset), max(high, self._offset + len(self._counts) - 1)
        coarser = _coarser(low, high)
        low, high = low >> coarser, high >> coarser
        merged = np.zeros(high - low + 1, np.int64)
        before = np.arange(self._offset, self._offset + len(self._counts)) >> coarser
        np.add.at(merged, before - low, self._counts)
        np.add.at(merged, (indices >> coarser) - low, counts)
        self._scale, self._offset, self._counts = self._scale - coarser, low, merged


def _indices(values: Values) -> Values:
    """The bucket of each value > 0 at the finest scale. A power of two ends its bucket, exactly."""
    fraction, exponent = np.frexp(values.astype(np.float64))
    above = np.ceil(np.log2(fraction) * (1 << MAX_SCALE)).astype(np.int64)
    indices: Values = (exponent.astype(np.int64) << MAX_SCALE) + above - 1
    return indices


def _coarser(low: int, high: int) -> int:
    """By how much the scale must fall for these indices to fit."""
    change = 0
    while (high >> change) - (low >> change) >= MAX_BUCKETS:
        change += 1
    return change
