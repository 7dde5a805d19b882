"""A summary as text for people, 80 columns wide."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from memexport.analysis.frames import own_code, parse_frame
from memexport.analysis.text import human_bytes, human_duration, human_time, printable
from memexport.model import INDEX_CLOCK_NS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from memexport.analysis.stacks import StackBytes
    from memexport.analysis.summary import DeviceSummary, Summary

WIDTH: Final = 80

_UNKNOWN: Final = "\N{EN DASH}"
_LISTED: Final = 10
"""Rows of each table: a report should fit on a screen, `--json` has the rest."""


_LINE_WIDTH: Final = 44
"""Characters of a frame: functions of C++ have names that fill pages."""

_SMALLEST_SHARE: Final = 1_000
"""Stacks that hold less than one part in this many of the peak are left to `--json`."""


def render_text(summary: Summary) -> str:
    """The whole summary, without colours or control characters, ending without a line feed."""
    parts: list[RenderableType] = [_headline(summary)]
    if summary.devices:
        parts += ["", _counters(summary)]
    for name, device in summary.devices.items():
        parts += ["", *_peak(name, device, summary)]
        parts += _failed_requests(name, device, summary)
    if summary.top_operators:
        parts += ["", _operators(summary)]
    if summary.markers:
        parts += ["", _markers(summary)]
    parts += [f"\nWarning: {printable(warning)}" for warning in summary.warnings]
    return rendered(parts)


def rendered(parts: list[RenderableType]) -> str:
    """The parts one below the other, without colours or control characters."""
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


def new_table(title: str, *columns: str) -> Table:
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
    table = new_table("Memory", "device", "counter", ">start", ">peak", ">end")
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
    if device.fragmentation_at_peak is not None:
        parts.append(_fragmentation(device.fragmentation_at_peak, device))
    total = sum(device.categories_at_peak.values())
    # That all is unattributed is no news.
    if device.categories_at_peak.keys() - {"unattributed"}:
        parts += _shares("category", list(device.categories_at_peak.items()), total)
    if any(row.module for row in device.modules_at_peak):
        modules = [(_cell(row.module), row.bytes) for row in device.modules_at_peak[:_LISTED]]
        parts += _shares("module", modules, total)
    elif device.code_at_peak:
        parts += ["", _code(list(device.code_at_peak[:_LISTED]), total)]
    if any(row.operator for row in device.operators_at_peak):
        operators = [(_cell(row.operator), row.bytes) for row in device.operators_at_peak[:_LISTED]]
        parts += _shares("operator", operators, total)
    return parts


def _fragmentation(unused: int, device: DeviceSummary) -> str:
    text = f"Reserved but not active then: {human_bytes(unused)}"
    reserved = device.reserved_at_peak
    return f"{text} of {human_bytes(reserved)} ({unused / reserved:.1%})" if reserved else text


def _shares(what: str, rows: Sequence[tuple[str, int]], total: int) -> list[RenderableType]:
    if not rows:
        return []
    table = new_table("", f"at the peak, {what}", ">bytes", ">share")
    for name, size in rows:
        table.add_row(name, human_bytes(size), f"{size / total:.1%}")
    return ["", table]


def _code(rows: list[StackBytes], total: int) -> Table:
    table = new_table("", "at the peak, by stack", ">bytes", ">share", ">count")
    for row in rows[:1] + [row for row in rows[1:] if row.bytes >= total / _SMALLEST_SHARE]:
        table.add_row(
            _frames(row.stack), human_bytes(row.bytes), f"{row.bytes / total:.1%}", f"{row.count:,}"
        )
    return table


def _frames(stack: Sequence[str] | None) -> str:
    """The innermost frame, and its callers below it."""
    if not stack:
        return "(no stack)"
    innermost, *callers = reversed(stack)
    return "\n".join(map(_line, [innermost, *(f"  in {caller}" for caller in callers)]))


def _line(text: str) -> str:
    """The text in one line of a table's cell."""
    text = printable(text)
    return text if len(text) <= _LINE_WIDTH else text[: _LINE_WIDTH - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _failed_requests(name: str, device: DeviceSummary, summary: Summary) -> list[RenderableType]:
    if not device.failed_requests:
        return []
    lines = [f"\n{printable(name)} ran out of memory"]
    for request in device.failed_requests[:_LISTED]:
        size = "an unknown size" if request.bytes is None else human_bytes(request.bytes)
        text = f"  {size} requested {_when(request.time_unix_ns, summary)}"
        if request.device_free_bytes is not None:
            text += f", {human_bytes(request.device_free_bytes)} free"
        lines.append(text)
        code = own_code([parse_frame(frame) for frame in request.stack or ()], 1)
        lines += [f"    in {_line(frame)}" for frame in code]
    return ["\n".join(lines)]


def _moment(device: DeviceSummary, time_unix_ns: int, summary: Summary) -> str:
    text = _when(time_unix_ns, summary)
    if device.peak_operator:
        text += f", in {printable(device.peak_operator)}"
    if device.peak_module:
        text += f" of {printable(device.peak_module)}"
    return f"{text} ({device.peak_phase})" if device.peak_phase else text


def _when(time_unix_ns: int, summary: Summary) -> str:
    if summary.clock == "index":
        return f"at event {time_unix_ns // INDEX_CLOCK_NS}"
    return f"at {human_time(time_unix_ns)}"


def _operators(summary: Summary) -> Table:
    table = new_table("Operators by net bytes", "operator", "module", "phase", ">bytes", ">calls")
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
