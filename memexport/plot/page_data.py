"""What a page carries of a timeline, as JSON: columns as differences, each name once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from memexport.analysis.group_bytes import Maker
from memexport.analysis.palette import (
    CATEGORY_COLOURS,
    COUNTER_COLOURS,
    OUT_OF_MEMORY,
    PHASE_SHADES,
    category_label,
)
from memexport.analysis.place_fold import phase_name
from memexport.analysis.text import printable
from memexport.analysis.timeline import DeviceTimeline, LiveMoment, Timeline, coarser, phase_strip
from memexport.model import INDEX_CLOCK_NS, Category, Column, Phase
from memexport.plot.about import LONGEST_NAME, facts_of, title_of

MOST_DEVICES: Final = 64
"""How many devices a page has; of more, those with the highest peaks."""

_ALL_BINS: Final = 16_384
_ALL_MOMENTS: Final = 2_048
_ALL_GROUPS: Final = 8_000
_MOMENT_BINS: Final = 8
"""A moment stands for so many of the timeline's bins (`moments.WINDOW_BINS`)."""

_EXACT: Final = 2**53 - 1
"""JavaScript's numbers are exact up to here."""


class _Strings:
    """Names, each once; 0 is none, n the n-th."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._ids: dict[str, int] = {}

    def id(self, text: str | None) -> int:
        """The number of the text, shortened to what a page carries."""
        if not text:
            return 0
        text = printable(text, LONGEST_NAME)
        found = self._ids.setdefault(text, len(self.texts) + 1)
        if found > len(self.texts):
            self.texts.append(text)
        return found


def page_data(timeline: Timeline, title: str | None = None) -> dict[str, Any]:
    """The object that the page's script reads."""
    shown = _shown_devices(timeline)
    factor = _factor(timeline, len(shown))
    strings = _Strings()
    devices = [_Device(device, factor, len(shown), timeline, strings).to_dict() for device in shown]
    return {
        "title": title_of(timeline, title),
        "facts": list(facts_of(timeline)),
        "notes": list(_notes(timeline, shown, factor)),
        "clock": timeline.info.clock,
        "index": INDEX_CLOCK_NS,
        "first": timeline.first_ns,
        "width": timeline.bin_ns * factor,
        "bins": -(-timeline.bins // factor),
        "window": max(1, _MOMENT_BINS // factor),
        "colours": {category_label(category): colour for category, colour in CATEGORY_COLOURS.items()},
        "counters": dict(COUNTER_COLOURS),
        "failed": OUT_OF_MEMORY,
        "phases": {int(p): {"name": phase_name(p), "shade": shade} for p, shade in PHASE_SHADES.items()},
        "marks": [[m.time_ns, printable(m.name, LONGEST_NAME), m.is_out_of_memory] for m in timeline.marks],
        "devices": devices,
        "strings": strings.texts,
    }


def _shown_devices(timeline: Timeline) -> tuple[DeviceTimeline, ...]:
    devices = timeline.devices
    if len(devices) <= MOST_DEVICES:
        return devices
    least = sorted((device.peak.allocated_bytes for device in devices), reverse=True)[MOST_DEVICES - 1]
    return tuple(device for device in devices if device.peak.allocated_bytes >= least)[:MOST_DEVICES]


def _factor(timeline: Timeline, devices: int) -> int:
    """How many bins become one so that all devices together are not too much."""
    factor = 1
    while timeline.bins * devices > factor * _ALL_BINS:
        factor *= 2
    return factor


def _notes(timeline: Timeline, shown: Sequence[DeviceTimeline], factor: int) -> Iterable[str]:
    if shown:
        columns = -(-timeline.bins // factor)
        yield (
            f"Of each of {columns:,} parts of the time you see the highest moment: no peak is hidden, and the"
            " highest is exact to the byte."
        )
    if len(shown) < len(timeline.devices):
        yield f"{len(timeline.devices) - len(shown)} devices with lower peaks are left out."
    if timeline.marks_left_out:
        yield f"{timeline.marks_left_out:,} more markers are left out."
    yield from (_sentence(printable(warning)) for warning in timeline.warnings)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


class _Device:
    """One device, as the page's script reads it."""

    def __init__(
        self, device: DeviceTimeline, factor: int, devices: int, timeline: Timeline, strings: _Strings
    ) -> None:
        self._device = device if factor == 1 else coarser(device, factor)
        self._most_moments = max(16, _ALL_MOMENTS // devices)
        self._most_groups = max(40, _ALL_GROUPS // devices)
        self._timeline = timeline
        self._strings = strings
        self._groups: dict[int, int] = {}

    def to_dict(self) -> dict[str, Any]:
        """Its columns, moments and names."""
        device, samples = self._device, self._device.samples
        moments = [self._moment(moment, 20) for moment in _thinned(device.moments, self._most_moments)]
        peak = self._moment(device.peak, self._most_groups)
        categories = device.categories or (Category.UNATTRIBUTED,)
        return {
            "name": printable(device.name, LONGEST_NAME),
            "categories": [category_label(category) for category in categories],
            "stack": [_differences(samples["categories"][:, category]) for category in categories],
            "allocated": _differences(samples["allocated_bytes"]),
            "lowest": _differences(device.lowest_bytes),
            "reserved": _differences(device.reserved_bytes),
            "has_reserved": bool((device.reserved_bytes >= 0).any()),
            "operator": self._names(samples["name"]),
            "module": self._names(samples["module"]),
            "phase": _differences(_drawn(samples["phase"])),
            "strip": _differences(_drawn(phase_strip(device))),
            "step": _differences(samples["step"]),
            "held": _differences(device.is_held),
            "peak": peak,
            "moments": moments,
            "names": {int(category): category_label(category) for category in Category},
            "groups": [self._group(number) for number in self._groups],
            "has_modules": any(group.maker is Maker.MODULE for group in device.groups),
        }

    def _names(self, ids: Column) -> list[int]:
        distinct, index = np.unique(ids, return_inverse=True)
        own = [self._strings.id(self._timeline.strings.get(number)) for number in distinct.tolist()]
        return _differences(np.array(own, np.int64)[index])

    def _group(self, number: int) -> list[Any]:
        group = self._device.groups[number]
        return [int(group.category), group.maker.name.lower(), self._strings.id(group.name)]

    def _moment(self, moment: LiveMoment, limit: int) -> list[Any]:
        listed: list[int] = []
        for group, size in moment.groups[:limit]:
            listed += self._groups.setdefault(group, len(self._groups)), min(size, _EXACT)
        others = moment.others_bytes + sum(size for _, size in moment.groups[limit:])
        phase = Phase[moment.phase.upper()] if moment.phase else Phase.UNKNOWN
        return [
            moment.time_ns,
            min(moment.allocated_bytes, _EXACT),
            moment.reserved_bytes,
            self._strings.id(moment.operator),
            self._strings.id(moment.module),
            int(phase),
            moment.step,
            min(others, _EXACT),
            min(moment.unexplained_bytes, _EXACT),
            listed,
        ]


def _drawn(phase: Column) -> Column:
    """0 for phases that have no shade."""
    return np.where(np.isin(phase, [int(known) for known in PHASE_SHADES]), phase, 0)


def _thinned(moments: Sequence[LiveMoment], most: int) -> Iterable[LiveMoment]:
    """Of every few moments the highest."""
    every = -(-len(moments) // most)
    for begin in range(0, len(moments), max(1, every)):
        yield max(moments[begin : begin + every], key=lambda moment: moment.allocated_bytes)


def _differences(values: Column) -> list[int]:
    """Each value less the one before it: most columns seldom change, and 0 takes little room."""
    clipped = np.clip(values.astype(np.int64), -1, _EXACT)
    differences: list[int] = np.diff(clipped, prepend=0).tolist()
    return differences
