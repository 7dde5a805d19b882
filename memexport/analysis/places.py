"""A place is what has memory of its own: one device of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from memexport.model import Column, EventBatch, RecordingInfo


class Place(NamedTuple):
    """A device of a rank; rank −1 where the recording does not say."""

    rank: int
    device: int


def split_by_place(batch: EventBatch) -> Iterator[tuple[Place, Column]]:
    """Each place that the batch speaks of, with the positions of its events in ascending order.

    Events without a device (most spans and markers) belong to no place.
    """
    for rank, of_rank in _groups(batch.rank):
        devices = batch.device if of_rank is None else batch.device[of_rank]
        for device, of_device in _groups(devices):
            if device >= 0:
                yield Place(rank, device), _positions(len(batch), of_rank, of_device)


def place_names(places: list[Place], info: RecordingInfo) -> dict[Place, str]:
    """What to call each place: "cuda:0", or "rank 3 cuda:0" where the places are of several ranks."""
    several_ranks = len({place.rank for place in places}) > 1
    names: dict[Place, str] = {}
    for place in sorted(places):
        known = place.device < len(info.devices)
        name = str(info.devices[place.device]) if known else f"device {place.device}"
        if several_ranks and place.rank >= 0:
            name = f"rank {place.rank} {name}"
        # Two devices of the same type and index, from two hosts, must not hide one another.
        names[place] = name if name not in names.values() else f"{name} (device {place.device})"
    return names


def _groups(values: Column) -> Iterator[tuple[int, Column | None]]:
    """Each distinct value with the positions that hold it; None stands for all positions."""
    if not len(values):
        return
    low, high = int(values.min()), int(values.max())
    if low == high:
        yield low, None
        return
    # Two neighbours, like −1 and 0, are what almost every batch has; a sort would find no more in them.
    distinct = (low, high) if high - low == 1 else np.unique(values).tolist()
    for value in distinct:
        yield value, np.flatnonzero(values == value)


def _positions(length: int, outer: Column | None, inner: Column | None) -> Column:
    if outer is None:
        return np.arange(length) if inner is None else inner
    return outer if inner is None else outer[inner]
