"""What a collection finds: the values of every series of one process at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memexport.exporters._otel_histogram import Tally
from memexport.exporters._otel_metrics import Metric

Attributes = tuple[tuple[str, str], ...]
"""Keys and values, in the order of the metric's."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Numbers:
    """The values of a metric that is not a histogram.

    Attributes:
        attributes: of the series. A later collection may have more, after these.
        values: of the series, in the same order.
    """

    metric: Metric
    attributes: Sequence[Attributes]
    values: Ints


@dataclass(frozen=True)
class Tallied:
    """What was counted into one series of a histogram since the collection before."""

    metric: Metric
    attributes: Attributes
    tally: Tally


@dataclass(frozen=True)
class Snapshot:
    """All series of one process. Each was there in every earlier snapshot, or is new and stays."""

    numbers: tuple[Numbers, ...]
    tallied: tuple[Tallied, ...]


class SeriesList:
    """The series of one metric: each gets a place when it first occurs, and keeps it."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._attributes: list[Attributes] = []
        self._places: dict[Attributes, int] = {}

    def place(self, *values: str) -> int:
        """The place of the series with these attribute values."""
        attributes = tuple(zip(self._metric.attributes, values, strict=True))
        return self.place_of(attributes)

    def place_of(self, attributes: Attributes) -> int:
        """The place of the series with these attributes."""
        place = self._places.get(attributes)
        if place is None:
            place = self._places[attributes] = len(self._attributes)
            self._attributes.append(attributes)
        return place

    def numbers(self, places: npt.ArrayLike, values: npt.ArrayLike) -> Numbers:
        """These values by place; a series without one has 0, several at one place are added up."""
        found = np.zeros(len(self._attributes), np.int64)
        np.add.at(found, np.asarray(places, np.intp), np.asarray(values, np.int64))
        return Numbers(self._metric, tuple(self._attributes), found)
