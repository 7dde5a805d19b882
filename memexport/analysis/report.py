"""A summary as text for people, 80 columns wide."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from memexport.analysis.text import human_bytes, human_duration, human_time, printable
from memexport.model import INDEX_CLOCK_NS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from memexport.analysis.summary import DeviceSummary, Summary

WIDTH: Final = 80

_UNKNOWN: Final = "\N{EN DASH}"
_LISTED: Final = 10
"""Rows of each table: a report should fit on a screen, `--json` has the rest."""


def render_text(summary: Summary) -> str:
    """The whole summary, without colours or control characters, ending without a line feed."""
    parts: list[RenderableType] = [_headline(summary)]
    if summary.devices:
        parts += ["", _counters(summary)]
    for name, device in summary.devices.items():
        parts += ["", *_peak(name, device, summary)]
    if summary.top_operators:
        parts += ["", _operators(summary)]
    if summary.markers:
        parts += ["", _markers(summary)]
    parts += [f"\nWarning: {printable(warning)}" for warning in summary.warnings]
    return _rendered(parts)


def _rendered(parts: list[RenderableType]) -> str:
    from rich.console import Console

    stream = io.StringIO()
    # The environment (FORCE_COLOR, COLUMNS) must not change what a string is.
    console = Console(
        file=stream,
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def _table(title: str, *columns: str) -> Table:
    """A table whose columns that begin with ">" are right-aligned numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        if column.startswith(">"):
            table.add_column(column[1:], justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    return table


def _headline(summary: Summary) -> str:
    counts = [
        _plural(summary.events, "event"),
        _plural(summary.operators, "operator"),
        _plural(summary.allocations, "allocation"),
        _plural(summary.releases, "release"),
    ]
    if summary.steps:
        counts.append(_plural(summary.steps, "step"))
    if summary.clock == "unix":
        counts.append(human_duration(summary.duration_ns))
    if summary.alloc_retries:
        counts.append(_plural(summary.alloc_retries, "allocation retry", "allocation retries"))
    if summary.ooms:
        counts.append(_plural(summary.ooms, "failed request", "failed requests"))
    return f"{printable(summary.format)}: {', '.join(counts)}"


def _plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _counters(summary: Summary) -> Table:
    table = _table("Memory", "device", "counter", ">start", ">peak", ">end")
    for name, device in summary.devices.items():
        for counter in ("allocated", "active", "reserved"):
            values = getattr(device, counter)
            if values is not None:
                cells = (human_bytes(v) for v in (values.start, values.peak, values.end))
                table.add_row(printable(name), counter, *cells)
    return table


def _peak(name: str, device: DeviceSummary, summary: Summary) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if device.peak_time_unix_ns is not None:
        parts.append(f"{printable(name)} peaked {_moment(device, device.peak_time_unix_ns, summary)}")
    total = sum(device.categories_at_peak.values())
    if device.categories_at_peak:
        table = _table("", "at the peak, category", ">bytes", ">share")
        for category, size in device.categories_at_peak.items():
            table.add_row(category, human_bytes(size), f"{size / total:.1%}")
        parts += ["", table]
    if any(row.module for row in device.modules_at_peak):
        table = _table("", "at the peak, module", ">bytes", ">share")
        for row in device.modules_at_peak[:_LISTED]:
            table.add_row(_cell(row.module), human_bytes(row.bytes), f"{row.bytes / total:.1%}")
        parts += ["", table]
    return parts


def _moment(device: DeviceSummary, time_unix_ns: int, summary: Summary) -> str:
    if summary.clock == "index":
        text = f"at event {time_unix_ns // INDEX_CLOCK_NS}"
    else:
        text = f"at {human_time(time_unix_ns)}"
    if device.peak_operator:
        text += f", in {printable(device.peak_operator)}"
    if device.peak_module:
        text += f" of {printable(device.peak_module)}"
    return f"{text} ({device.peak_phase})" if device.peak_phase else text


def _operators(summary: Summary) -> Table:
    table = _table("Operators by net bytes", "operator", "module", "phase", ">bytes", ">calls")
    for row in summary.top_operators[:_LISTED]:
        cells = (_cell(row.operator), _cell(row.module), _cell(row.phase))
        table.add_row(*cells, human_bytes(row.bytes), f"{row.count:,}")
    return table


def _markers(summary: Summary) -> str:
    names = [printable(marker.name or _UNKNOWN) for marker in summary.markers[:_LISTED]]
    more = len(summary.markers) - len(names)
    return f"Markers: {', '.join(names)}" + (f" and {more:,} more" if more else "")


def _cell(text: str | None) -> str:
    return printable(text) if text else _UNKNOWN
