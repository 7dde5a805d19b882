"""A summary as a page for people: how high, when and where; what was live; what grew; what to try next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from memexport.analysis.frames import own_code, parse_frame
from memexport.analysis.imbalance_report import rank_parts, with_listed_ranks
from memexport.analysis.page import (
    PLAIN,
    UNKNOWN,
    Style,
    cell,
    heading,
    new_table,
    numbered,
    plural,
    rendered,
    shares,
)
from memexport.analysis.report_growth import growth_parts
from memexport.analysis.text import human_bytes, human_duration, human_time, printable
from memexport.model import INDEX_CLOCK_NS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from memexport.analysis.device_summary import DeviceSummary
    from memexport.analysis.failed_requests import FailedRequest
    from memexport.analysis.stacks import StackBytes
    from memexport.analysis.summary import Summary

LISTED: Final = 10
"""Rows of each table: a report should fit on a screen, `--json` has the rest."""

_Row = TypeVar("_Row", bound=tuple[object, int])

_LINE_WIDTH: Final = 44
"""Characters of a frame: functions of C++ have names that fill pages."""

_SMALLEST_SHARE: Final = 1_000
"""What holds less than one part in this many of the peak is left to `--json`."""


def render_text(summary: Summary, style: Style = PLAIN) -> str:
    """The whole summary, ending without a line feed; without control characters unless it has colours."""
    summary = with_listed_ranks(summary)
    parts: list[RenderableType] = [headline(summary)]
    parts += [heading(sentence) for sentence in peak_sentences(summary)]
    if summary.devices:
        parts += ["", _counters(summary)]
    parts += rank_parts(summary)
    for name, device in summary.devices.items():
        parts += _live_at_peak(name, device, summary, style)
    if summary.top_operators:
        parts += ["", _operators(summary)]
    parts += growth_parts(summary)
    if troubles := list(trouble_sentences(summary)):
        parts += ["", *troubles]
    for name, device in summary.devices.items():
        parts += _failed_requests(name, device, summary, style)
    if summary.advice:
        parts += ["", heading("What to try next"), numbered([advice.text for advice in summary.advice])]
    if summary.markers:
        parts += ["", _markers(summary)]
    parts += [f"\nWarning: {printable(warning)}" for warning in summary.warnings]
    return rendered(parts, style)


def headline(summary: Summary) -> str:
    """How much was recorded."""
    counts = [
        plural(summary.events, "event"),
        plural(summary.operators, "operator"),
        plural(summary.allocations, "allocation"),
        plural(summary.releases, "release"),
    ]
    if summary.steps:
        counts.append(plural(summary.steps, "step"))
    if summary.clock == "unix":
        counts.append(human_duration(summary.duration_ns))
    return f"{printable(summary.format)}: {', '.join(counts)}"


def peak_sentences(summary: Summary) -> Iterator[str]:
    """How high each device peaked, when, and in which operator and module."""
    for name, device in summary.devices.items():
        if device.allocated is None or device.peak_time_unix_ns is None:
            continue
        text = f"{name} peaked at {human_bytes(device.allocated.peak)}"
        if device.peak_operator:
            text += f" in {device.peak_operator}"
        if device.peak_module:
            text += f" of {device.peak_module}"
        phase = f" ({device.peak_phase})" if device.peak_phase else ""
        yield printable(f"{text}{phase}, {_when(device.peak_time_unix_ns, summary)}")


def trouble_sentences(summary: Summary) -> Iterator[str]:
    """Fragmentation, and requests that did not succeed at once."""
    for name, device in summary.devices.items():
        unused, reserved = device.fragmentation_at_peak, device.reserved_at_peak
        if unused is not None and reserved:
            share = f"{human_bytes(unused)} of {human_bytes(reserved)} ({unused / reserved:.1%})"
            yield printable(f"{name}: reserved but not active at the peak: {share}")
    if summary.alloc_retries:
        times = plural(summary.alloc_retries, "allocation retry", "allocation retries")
        yield f"{times}: the allocator emptied its cache and tried again"
    if summary.ooms:
        yield f"{plural(summary.ooms, 'failed request', 'failed requests')}: out of memory"


def _counters(summary: Summary) -> Table:
    table = new_table("Memory", "device", "counter", ">start", ">peak", ">end")
    for name, device in summary.devices.items():
        for counter in ("allocated", "active", "reserved"):
            values = getattr(device, counter)
            if values is not None:
                cells = (human_bytes(v) for v in (values.start, values.peak, values.end))
                table.add_row(printable(name), counter, *cells)
    return table


def _live_at_peak(name: str, device: DeviceSummary, summary: Summary, style: Style) -> list[RenderableType]:
    listings: list[tuple[str, list[tuple[str, int]]]] = []
    total = sum(device.categories_at_peak.values())
    where = "at the peak" if len(summary.devices) == 1 else f"at the peak of {printable(name)}"
    # That all is unattributed is no news.
    if device.categories_at_peak.keys() - {"unattributed"}:
        listings.append((f"{where}, by category", list(device.categories_at_peak.items())))
    if any(row.module for row in device.modules_at_peak):
        modules = [(cell(row.module), row.bytes) for row in device.modules_at_peak]
        listings.append((f"{where}, by module", largest(modules, total)))
    if any(row.operator for row in device.operators_at_peak):
        operators = [(cell(row.operator), row.bytes) for row in device.operators_at_peak]
        listings.append((f"{where}, by operator", largest(operators, total)))
    parts = shares(listings, total, style)
    if device.code_at_peak and not any(row.module for row in device.modules_at_peak):
        parts += ["", _code(where, list(device.code_at_peak[:LISTED]), total)]
    return parts


def largest(rows: Sequence[_Row], total: int) -> list[_Row]:
    """Those of the first that are large enough to be shown; one at least."""
    return [*rows[:1], *(row for row in rows[1:LISTED] if row[1] >= total / _SMALLEST_SHARE)]


def _code(where: str, rows: list[StackBytes], total: int) -> Table:
    table = new_table("", f"{where}, by stack", ">bytes", ">share", ">count")
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


def _failed_requests(
    name: str, device: DeviceSummary, summary: Summary, style: Style
) -> list[RenderableType]:
    if not device.failed_requests:
        return []
    lines = [f"\n{printable(name)} ran out of memory"]
    for request in device.failed_requests[:LISTED]:
        lines.append(f"  {printable(request_sentence(request, summary))}")
        lines += [f"    in {_line(frame)}" for frame in code_of(request)]
    return ["\n".join(lines), *_live_at_failure(device, style)]


def request_sentence(request: FailedRequest, summary: Summary) -> str:
    """How much was asked for, when, by whom, and what was free."""
    size = "an unknown size" if request.bytes is None else human_bytes(request.bytes)
    text = f"{size} requested {_when(request.time_unix_ns, summary)}"
    who = [name for name in (request.operator, request.module) if name]
    text += f", in {' of '.join(who)}" if who else ""
    text += f" ({request.phase})" if request.phase else ""
    free = request.device_free_bytes
    return text if free is None else f"{text}, {human_bytes(free)} free"


def code_of(request: FailedRequest) -> tuple[str, ...]:
    """The frame that says most of who asked; none without a stack."""
    return own_code([parse_frame(frame) for frame in request.stack or ()], 1)


def failure_listings(device: DeviceSummary) -> list[tuple[str, list[tuple[str | None, int]]]]:
    """What lived when the last request failed, unless it is what lived at the peak."""
    request = device.failed_requests[-1]
    if request.categories == device.categories_at_peak or not request.categories.keys() - {"unattributed"}:
        return []
    by_category: list[tuple[str | None, int]] = list(request.categories.items())
    listings = [("when it failed, by category", by_category)]
    if any(row.module for row in request.modules):
        by_module = [(row.module, row.bytes) for row in request.modules]
        listings.append(("when it failed, by module", by_module))
    return listings


def _live_at_failure(device: DeviceSummary, style: Style) -> list[RenderableType]:
    total = sum(device.failed_requests[-1].categories.values())
    listings = [
        (title, largest([(cell(name), size) for name, size in rows], total))
        for title, rows in failure_listings(device)
    ]
    return shares(listings, total, style)


def _when(time_unix_ns: int, summary: Summary) -> str:
    if summary.clock == "index":
        return f"at event {time_unix_ns // INDEX_CLOCK_NS}"
    return f"at {human_time(time_unix_ns)}"


def _operators(summary: Summary) -> Table:
    table = new_table("Operators by net bytes", "operator", "module", "phase", ">bytes", ">calls")
    for row in summary.top_operators[:LISTED]:
        cells = (cell(row.operator), cell(row.module), cell(row.phase))
        table.add_row(*cells, human_bytes(row.bytes), f"{row.count:,}")
    return table


def _markers(summary: Summary) -> str:
    names = [printable(marker.name or UNKNOWN) for marker in summary.markers[:LISTED]]
    more = len(summary.markers) - len(names)
    return f"Markers: {', '.join(names)}" + (f" and {more:,} more" if more else "")
