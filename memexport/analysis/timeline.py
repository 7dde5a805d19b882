"""What a picture shows of a recording: its devices over time, a few thousand bins, exact at every peak."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from memexport.analysis.group_bytes import Group
from memexport.analysis.time_bins import Samples, unknown_samples
from memexport.model import Category, Column, RecordingInfo, StringTable


@dataclass(frozen=True)
class Mark:
    """A moment with a name; `time_ns` counts from the timeline's zero."""

    time_ns: int
    name: str
    is_out_of_memory: bool


@dataclass(frozen=True)
class LiveMoment:
    """What was live right after an event.

    Attributes:
        time_ns: when, from the timeline's zero.
        step: −1 outside of steps.
        operator: with `module` and `phase`, the event; None for what is not known.
        groups: the largest, by their place in `DeviceTimeline.groups`, with the bytes each held.
        others_bytes: what all further groups held.
        unexplained_bytes: what no allocation explains. With it and `others_bytes`, the groups come to
            `allocated_bytes`, or to more where allocations take more than the counter says.
    """

    time_ns: int
    allocated_bytes: int
    reserved_bytes: int | None
    operator: str | None
    module: str | None
    phase: str | None
    step: int
    groups: tuple[tuple[int, int], ...]
    others_bytes: int
    unexplained_bytes: int


@dataclass(frozen=True)
class DeviceTimeline:
    """One device of one rank, in the timeline's bins.

    Attributes:
        name: "cuda:0", or "rank 3 cuda:0" where there are several ranks.
        samples: the highest moment of each bin (`time_bins.SAMPLE`, its times from the timeline's zero); in a
            bin without events, what the last one before left. Before the first, `allocated_bytes` is −1.
        is_held: the bins without events.
        lowest_bytes: the lowest `allocated` of each bin.
        reserved_bytes: the highest `reserved` of each bin; −1 where it is not known.
        categories: those that ever held a byte, in the order of a stack.
        peak: the moment at which `allocated` first reached its peak.
        moments: the highest moment of every few bins, and where nothing follows, the last one; ascending.
        groups: what the moments list.
    """

    name: str
    samples: Samples
    is_held: Column
    lowest_bytes: Column
    reserved_bytes: Column
    categories: tuple[Category, ...]
    peak: LiveMoment
    moments: tuple[LiveMoment, ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Timeline:
    """A recording over time.

    Attributes:
        first_ns: where the first bin begins: after the recording's start if that is known, else 0.
        bin_ns: the width of a bin.
        bins: how many there are.
        events: how many events the recording has.
        devices: by name; those that nothing is known of are left out.
        marks: the first few hundred markers, ascending.
        marks_left_out: how many there were beyond them.
        strings: what names and modules in the samples are.
    """

    info: RecordingInfo
    first_ns: int
    bin_ns: int
    bins: int
    events: int
    devices: tuple[DeviceTimeline, ...]
    marks: tuple[Mark, ...]
    marks_left_out: int
    warnings: tuple[str, ...]
    strings: StringTable

    @property
    def has_clock(self) -> bool:
        """Whether times are times: without a clock, every `INDEX_CLOCK_NS` is an event."""
        return self.info.clock == "unix"


def coarser(device: DeviceTimeline, factor: int) -> DeviceTimeline:
    """The device with `factor` bins made one: of each the highest moment."""
    return dataclasses.replace(
        device,
        samples=_reduced(device.samples, factor),
        is_held=np.logical_and.reduce(_grouped(device.is_held, factor, True), axis=1),
        lowest_bytes=_lowest(_grouped(device.lowest_bytes, factor, -1)),
        reserved_bytes=_grouped(device.reserved_bytes, factor, -1).max(axis=1),
    )


def phase_strip(device: DeviceTimeline) -> Column:
    """The phase of each bin, for a strip beside the bytes.

    What happens between two moments of one phase, and has no phase itself, is taken for a part of it.
    """
    phase = device.samples["phase"]
    places = np.arange(len(phase))
    before = np.maximum.accumulate(np.where(phase != 0, places, -1))
    after = np.minimum.accumulate(np.where(phase != 0, places, len(phase))[::-1])[::-1]
    inside = (before >= 0) & (after < len(phase))
    left, right = phase[np.maximum(before, 0)], phase[np.minimum(after, max(0, len(phase) - 1))]
    is_near = after - before <= max(2, len(phase) // 50)
    return np.where(inside & is_near & (left == right), left, phase)


def _reduced(samples: Samples, factor: int) -> Samples:
    groups = _grouped(samples, factor, unknown_samples(1)[0])
    chosen: Samples = groups[np.arange(len(groups)), groups["allocated_bytes"].argmax(axis=1)]
    return chosen


def _lowest(groups: Column) -> Column:
    known = np.where(groups < 0, np.iinfo(np.int64).max, groups).min(axis=1)
    return np.where((groups < 0).all(axis=1), -1, known)


def _grouped(values: Column, factor: int, filling: Any) -> Column:
    """The values as rows of `factor`, the last one filled up."""
    rows = -(-len(values) // factor)
    padded = np.full(rows * factor, filling, values.dtype)
    padded[: len(values)] = values
    return padded.reshape(rows, factor)
