"""One device in a picture: its categories on each other over time, with what matters marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from memexport.analysis.palette import (
    CATEGORY_COLOURS,
    COUNTER_COLOURS,
    OUT_OF_MEMORY,
    PHASE_SHADES,
    Theme,
    category_label,
)
from memexport.analysis.place_fold import phase_name
from memexport.analysis.text import human_bytes, printable
from memexport.analysis.timeline import DeviceTimeline, Timeline, phase_strip
from memexport.model import INDEX_CLOCK_NS, Column, Phase
from memexport.plot.about import peak_sentence
from memexport.plot.ticks import byte_ticks, event_ticks, time_ticks

_MOST_STEPS: Final = 60
_MOST_PHASES: Final = 300
_LEAST_STEP: Final = 6
"""How many bins steps must have for their phases to show."""
_LEGEND_POINTS: Final = 156
_CHARACTER_PIXELS: Final = 7.0
_LEAST_LABEL: Final = 0.05
"""The part of the axis from which on a phase's name has room."""


class Panel:
    """Draws on matplotlib axes. Places on the x axis are nanoseconds or, without a clock, events."""

    def __init__(
        self, axes: Any, timeline: Timeline, device: DeviceTimeline, bin_ns: int, theme: Theme
    ) -> None:
        self._axes = axes
        self._timeline = timeline
        self._device = device
        self._theme = theme
        self._scale = 1 if timeline.has_clock else INDEX_CLOCK_NS
        bins = len(device.samples)
        self._edges = (timeline.first_ns + np.arange(bins + 1) * float(bin_ns)) / self._scale
        self._begin, self._end = float(self._edges[0]), float(self._edges[-1])
        highest = max(int(device.samples["allocated_bytes"].max()), int(device.reserved_bytes.max()))
        self._top = max(1.0, max(highest, device.peak.allocated_bytes) * 1.12)

    def draw(self) -> None:
        """Draw all of it."""
        self._draw_axes()
        self._draw_steps()
        self._draw_stack()
        self._draw_reserved()
        self._draw_phases()
        self._draw_marks()
        self._draw_peak()
        self._draw_legend()

    def _draw_axes(self) -> None:
        axes, theme = self._axes, self._theme
        axes.set_facecolor(theme.surface)
        axes.set_xlim(self._begin, self._end)
        axes.set_ylim(0, self._top)
        bytes_ = byte_ticks(self._top)
        axes.set_yticks(bytes_.places, bytes_.labels)
        along = (time_ticks if self._timeline.has_clock else event_ticks)(self._begin, self._end)
        axes.set_xticks(along.places, along.labels)
        axes.tick_params(axis="both", colors=theme.muted, length=0, labelsize=9)
        # Below the strip of phases.
        axes.tick_params(axis="x", pad=17)
        axes.grid(axis="y", color=theme.line, linewidth=0.8)
        axes.set_axisbelow(True)
        for side in axes.spines.values():
            side.set_visible(False)
        if not self._timeline.has_clock:
            axes.set_xlabel("event", color=theme.muted, fontsize=9)
        self._draw_title()

    def _draw_title(self) -> None:
        """The device, and opposite what made its peak, in as much as the width has room for."""
        place = {"transform": self._axes.transAxes, "va": "bottom", "parse_math": False}
        y = 1 + self._pixels(22)
        name = printable(self._device.name, 40)
        self._axes.text(0, y, name, color=self._theme.ink, fontsize=10, weight="bold", **place)
        characters = int(self._axes.get_window_extent().width / _CHARACTER_PIXELS) - len(name)
        sentence = peak_sentence(self._timeline, self._device, characters)
        self._axes.text(1, y, sentence, color=self._theme.ink, fontsize=9.5, ha="right", **place)

    def _pixels(self, count: int) -> float:
        """As a part of the axes' height."""
        height: float = self._axes.get_window_extent().height
        return count / height

    def _draw_stack(self) -> None:
        samples = self._device.samples
        base = np.zeros(len(samples))
        for category in self._device.categories:
            top = base + samples["categories"][:, category]
            where = np.flatnonzero(_changes(base) | _changes(top))
            edges = np.append(self._edges[where], self._end)
            # A step ends where the next begins, so the last value stands twice.
            lower, upper = (np.append(values[where], values[-1]) for values in (base, top))
            self._axes.fill_between(
                edges, lower, upper, step="post", linewidth=0, color=CATEGORY_COLOURS[category], zorder=2
            )
            base = top

    def _draw_reserved(self) -> None:
        reserved = self._device.reserved_bytes.astype(float)
        if (reserved < 0).all():
            return
        reserved[reserved < 0] = np.nan
        where = np.flatnonzero(_changes(reserved))
        self._axes.step(
            np.append(self._edges[where], self._end), np.append(reserved[where], reserved[-1]), where="post",
            color=COUNTER_COLOURS["reserved"], linewidth=1.5, linestyle=(0, (4, 2)), zorder=3,
        )  # fmt: skip

    def _runs(self, column: Column) -> Iterator[tuple[float, float, int]]:
        """Where the column has one value: from, until, the value."""
        begins = np.flatnonzero(_changes(column))
        ends = np.append(begins[1:], len(column))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield float(self._edges[begin]), float(self._edges[end]), int(column[begin])

    def _draw_steps(self) -> None:
        steps = [run for run in self._runs(self._device.samples["step"]) if run[2] >= 0]
        if len(steps) > _MOST_STEPS:
            return
        every = max(1, len(steps) // 12)
        for number, (begin, _, step) in enumerate(steps):
            self._axes.axvline(begin, color=self._theme.line, linewidth=0.8, zorder=1)
            if number % every == 0 and begin < self._end - 0.05 * (self._end - self._begin):
                self._axes.annotate(
                    f"step {step}", (begin, 1), xycoords=("data", "axes fraction"), xytext=(3, 3),
                    textcoords="offset points", color=self._theme.muted, fontsize=8, annotation_clip=True,
                )  # fmt: skip

    def _draw_phases(self) -> None:
        """A strip below the axis; none where steps are too narrow to tell their phases apart."""
        runs = list(self._runs(phase_strip(self._device)))
        steps = len(list(self._runs(self._device.samples["step"])))
        bins = len(self._device.samples)
        if len(runs) > _MOST_PHASES or (steps > 1 and bins / steps < _LEAST_STEP):
            return
        below = {"transform": self._axes.get_xaxis_transform(), "clip_on": False}
        low, high = -self._pixels(17), -self._pixels(4)
        for begin, end, number in runs:
            if number not in PHASE_SHADES:
                continue
            phase = Phase(number)
            shade = PHASE_SHADES[phase]
            self._axes.fill_between(
                [begin, end], low, high, color=self._theme.ink, alpha=shade, linewidth=0, **below
            )
            if end - begin > _LEAST_LABEL * (self._end - self._begin):
                ink = self._theme.surface if shade > 0.5 else self._theme.ink
                self._axes.text(
                    (begin + end) / 2, (low + high) / 2, phase_name(phase), color=ink, fontsize=7.5,
                    ha="center", va="center_baseline", **below,
                )  # fmt: skip

    def _draw_marks(self) -> None:
        for mark in self._timeline.marks:
            place = mark.time_ns / self._scale
            if not self._begin <= place <= self._end:
                continue
            colour = OUT_OF_MEMORY if mark.is_out_of_memory else self._theme.muted
            self._axes.plot(
                [place], [1], marker="v", markersize=5, color=colour, clip_on=False,
                transform=self._axes.get_xaxis_transform(),
            )  # fmt: skip
            if mark.is_out_of_memory:
                self._axes.axvline(place, color=colour, linewidth=1.3, zorder=4)
                self._axes.annotate(
                    "out of memory", (place, 1), xycoords=("data", "axes fraction"), xytext=(-4, -12),
                    textcoords="offset points", color=colour, fontsize=8, ha="right", zorder=6,
                    bbox={"boxstyle": "round,pad=0.2", "fc": self._theme.surface, "ec": "none"},
                )  # fmt: skip

    def _draw_peak(self) -> None:
        peak, theme = self._device.peak, self._theme
        place = peak.time_ns / self._scale
        self._axes.plot(
            [place], [peak.allocated_bytes], marker="o", markersize=6, markerfacecolor=theme.surface,
            markeredgecolor=theme.ink, markeredgewidth=1.6, zorder=5,
        )  # fmt: skip
        is_right = place > self._begin + 0.85 * (self._end - self._begin)
        self._axes.annotate(
            human_bytes(peak.allocated_bytes), (place, peak.allocated_bytes),
            xytext=(-9 if is_right else 9, 0), textcoords="offset points",
            ha="right" if is_right else "left", va="center", color=theme.ink, fontsize=9, weight="bold",
            zorder=6, bbox={"boxstyle": "round,pad=0.3", "fc": theme.surface, "ec": theme.ink, "lw": 0.8},
        )  # fmt: skip

    def _draw_legend(self) -> None:
        """What is on what, from the top down, with its bytes at the peak in a column."""
        row = self._device.samples[int(self._device.samples["allocated_bytes"].argmax())]
        rows = [
            (CATEGORY_COLOURS[category], category_label(category), int(row["categories"][category]))
            for category in reversed(self._device.categories)
        ]
        if self._device.peak.reserved_bytes is not None:
            rows.insert(0, (COUNTER_COLOURS["reserved"], "reserved", self._device.peak.reserved_bytes))
        self._write_right(0, 0, "at the peak", self._theme.muted, is_end=True)
        for number, (colour, label, size) in enumerate(rows, start=1):
            self._write_right(number, 0, "\N{BLACK SQUARE}", colour, fontsize=15)
            self._write_right(number, 16, label, self._theme.ink)
            self._write_right(number, 0, human_bytes(size), self._theme.ink, is_end=True)

    def _write_right(
        self, row: int, indent: int, text: str, colour: str, *, is_end: bool = False, fontsize: float = 9
    ) -> None:
        """A text in a row of the legend; `indent` in points."""
        self._axes.annotate(
            text, (1, 1), xycoords="axes fraction", textcoords="offset points", color=colour,
            xytext=(_LEGEND_POINTS if is_end else 12 + indent, -15 * row),
            ha="right" if is_end else "left", va="center", fontsize=fontsize, annotation_clip=False,
        )  # fmt: skip


def _changes(values: Column) -> Column:
    """Where a value is another than the one before it; the first always is."""
    changed = np.ones(len(values), bool)
    changed[1:] = values[1:] != values[:-1]
    return changed
