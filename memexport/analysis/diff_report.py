"""A diff as a page for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from memexport.analysis.diff import DeviceDiff, Diff, StepDifference, changed
from memexport.analysis.page import (
    PLAIN,
    UNKNOWN,
    Style,
    cell,
    heading,
    new_table,
    plural,
    rendered,
    signed_bytes,
)
from memexport.analysis.text import human_bytes, human_duration, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

LISTED: Final = 12
"""Rows of each table; `--json` has all."""


def render_text(diff: Diff, style: Style = PLAIN) -> str:
    """The whole diff, ending without a line feed; without control characters unless it has colours."""
    parts: list[RenderableType] = [printable(f"A: {diff.a}"), printable(f"B: {diff.b}")]
    for name, device in diff.devices.items():
        parts += ["", heading(gap_sentence(name, device))]
        parts += _categories(device)
        parts += _rows(device)
        if device.steps:
            parts += ["", steps_sentence(device), *_steps(device)]
    parts += [f"\n{sentence}" for sentence in unmatched_sentences(diff)]
    return rendered(parts, style)


def gap_sentence(name: str, device: DeviceDiff) -> str:
    """How much higher B peaks on a device."""
    a, b = device.a_peak_bytes, device.b_peak_bytes
    if a is None or b is None:
        return f"{name}: the peak is not known in {'A' if a is None else 'B'}"
    percent = f" ({(b - a) / a:+.1%})" if a else ""
    return f"{name} peaks at {human_bytes(a)} in A, {human_bytes(b)} in B: {signed_bytes(b - a)}{percent}"


def steps_sentence(device: DeviceDiff) -> str:
    """Where the steps part."""
    both = f"{plural(len(device.steps), 'step')} in both"
    if device.parts_at_step is None:
        return f"{both}; their peaks are within 1 %"
    return f"{both}; their peaks part at step {device.parts_at_step}"


def unmatched_sentences(diff: Diff) -> Iterator[str]:
    """The devices that only one has."""
    for side, names in (("A", diff.only_in_a), ("B", diff.only_in_b)):
        if names:
            yield printable(f"Only in {side}: {', '.join(names)}")


def size_cells(a: int, b: int) -> tuple[str, str, str]:
    """Bytes of A, of B, and what changed."""
    return human_bytes(a), human_bytes(b), signed_bytes(b - a) if b - a else "="


def step_rows(steps: Sequence[StepDifference]) -> list[tuple[str, ...]]:
    """Step, peaks and durations; of many steps those whose peaks differ most, in order."""
    shown = sorted(steps, key=lambda step: (-abs(_change(step) or 0), step.step))[:LISTED]
    return [
        (
            str(step.step),
            *_known_cells(step.a_peak_bytes, step.b_peak_bytes),
            *map(_duration, (step.a_duration_ns, step.b_duration_ns)),
        )
        for step in sorted(shown, key=lambda step: step.step)
    ]


def _known_cells(a: int | None, b: int | None) -> tuple[str, str, str]:
    if a is not None and b is not None:
        return size_cells(a, b)
    return _size(a), _size(b), UNKNOWN


def _size(size: int | None) -> str:
    return UNKNOWN if size is None else human_bytes(size)


def _change(step: StepDifference) -> int | None:
    if step.a_peak_bytes is None or step.b_peak_bytes is None:
        return None
    return step.b_peak_bytes - step.a_peak_bytes


def _duration(duration_ns: int | None) -> str:
    return UNKNOWN if duration_ns is None else human_duration(duration_ns)


def _categories(device: DeviceDiff) -> list[RenderableType]:
    if not device.rows:
        return []
    table = new_table("", "at the peaks, by category", ">A", ">B", ">change")
    for name, a, b in device.by("category"):
        table.add_row(cell(name), *size_cells(a, b))
    return ["", table]


def _rows(device: DeviceDiff) -> list[RenderableType]:
    shown, rest = changed(device.rows, LISTED)
    if not shown:
        return []
    table = new_table("What changed", "category", "module", "operator", ">change")
    for row in shown:
        names = map(cell, (row.category, row.module, row.operator))
        table.add_row(*names, signed_bytes(row.change))
    if rest:
        table.add_row(f"{len(rest):,} more", "", "", signed_bytes(sum(row.change for row in rest)))
    return ["", table]


def _steps(device: DeviceDiff) -> list[RenderableType]:
    table = new_table("", ">step", ">A peak", ">B peak", ">change", ">A time", ">B time")
    for row in step_rows(device.steps):
        table.add_row(*row)
    return [table]
