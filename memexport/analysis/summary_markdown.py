"""A summary for an issue or a pull request: the page of `report`, as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memexport.analysis import markdown
from memexport.analysis.imbalance_markdown import rank_blocks
from memexport.analysis.imbalance_report import with_listed_ranks
from memexport.analysis.report import (
    LISTED,
    code_of,
    failure_listings,
    headline,
    largest,
    peak_sentences,
    request_sentence,
    trouble_sentences,
)
from memexport.analysis.report_growth import growth_rows, is_suspicious, steady_sentence
from memexport.analysis.text import human_bytes

if TYPE_CHECKING:
    from memexport.analysis.device_summary import DeviceSummary
    from memexport.analysis.growth import DeviceGrowth
    from memexport.analysis.summary import Summary


def render_markdown(summary: Summary) -> str:
    """The whole summary, ending without a line feed."""
    summary = with_listed_ranks(summary)
    blocks = [[f"**{markdown.prose(sentence)}**"] for sentence in peak_sentences(summary)]
    blocks.append([markdown.prose(headline(summary))])
    if summary.devices:
        blocks.append(_counters(summary))
    blocks += rank_blocks(summary)
    for name, device in summary.devices.items():
        blocks += _live_at_peak(name, device, summary)
    if summary.top_operators:
        blocks.append(_operators(summary))
    for name, growth in summary.growth.items():
        if growth is not None:
            blocks.append(_growth(name, growth))
    blocks += [[markdown.prose(sentence)] for sentence in trouble_sentences(summary)]
    for name, device in summary.devices.items():
        blocks += _failed_requests(name, device, summary)
    if summary.advice:
        blocks.append(["**What to try next**"])
        blocks.append([f"1. {markdown.prose(advice.text)}" for advice in summary.advice])
    blocks += [[f"> Warning: {markdown.prose(warning)}"] for warning in summary.warnings]
    return "\n\n".join("\n".join(block) for block in blocks)


def _counters(summary: Summary) -> list[str]:
    rows = [
        (markdown.code(name), counter, *map(human_bytes, (values.start, values.peak, values.end)))
        for name, device in summary.devices.items()
        for counter in ("allocated", "active", "reserved")
        if (values := getattr(device, counter)) is not None
    ]
    return markdown.table(("device", "counter", ">start", ">peak", ">end"), rows)


def _live_at_peak(name: str, device: DeviceSummary, summary: Summary) -> list[list[str]]:
    total = sum(device.categories_at_peak.values())
    of_device = "" if len(summary.devices) == 1 else f" of {markdown.prose(name)}"
    listings: list[tuple[str, Sequence[tuple[str | None, int]]]] = [
        ("category", list(device.categories_at_peak.items())),
        ("module", [(row.module, row.bytes) for row in device.modules_at_peak]),
        ("operator", [(row.operator, row.bytes) for row in device.operators_at_peak]),
    ]
    tables = [
        markdown.table(
            (f"at the peak{of_device}, by {what}", ">bytes", ">share", ""),
            markdown.share_rows(largest(rows, total), total),
        )
        for what, rows in listings
        # That all is of nobody is no news.
        if {row_name for row_name, _ in rows} - {None, "unattributed"}
    ]
    if device.code_at_peak and not any(row.module for row in device.modules_at_peak):
        tables.append(_code(f"at the peak{of_device}, by stack", device, total))
    return tables


def _code(title: str, device: DeviceSummary, total: int) -> list[str]:
    """The innermost frames, each with its callers behind it."""
    rows = largest([(row, row.bytes) for row in device.code_at_peak], total)
    return markdown.table(
        (title, ">bytes", ">share", ">count"),
        (
            (
                " in ".join(map(markdown.code, reversed(row.stack or ()))) or "(no stack)",
                human_bytes(size),
                f"{size / total:.1%}",
                f"{row.count:,}",
            )
            for row, size in rows
        ),
    )


def _failed_requests(name: str, device: DeviceSummary, summary: Summary) -> list[list[str]]:
    if not device.failed_requests:
        return []
    requests = []
    for request in device.failed_requests[:LISTED]:
        where = "".join(f", in {markdown.code(frame)}" for frame in code_of(request))
        requests.append(f"- {markdown.prose(request_sentence(request, summary))}{where}")
    total = sum(device.failed_requests[-1].categories.values())
    tables = [
        markdown.table((title, ">bytes", ">share", ""), markdown.share_rows(largest(rows, total), total))
        for title, rows in failure_listings(device)
    ]
    return [[f"**{markdown.prose(name)} ran out of memory**"], requests, *tables]


def _operators(summary: Summary) -> list[str]:
    rows = [
        (
            *map(markdown.code, (row.operator, row.module)),
            row.phase or "",
            human_bytes(row.bytes),
            f"{row.count:,}",
        )
        for row in summary.top_operators[:LISTED]
    ]
    return markdown.table(("operators by net bytes", "module", "phase", ">bytes", ">calls"), rows)


def _growth(name: str, growth: DeviceGrowth) -> list[str]:
    if not is_suspicious(growth):
        return [markdown.prose(steady_sentence(name, growth))]
    rows = [(markdown.code(who), *cells) for who, *cells in growth_rows(growth)]
    title = f"live after each step on {markdown.prose(name)}: a leak?"
    return markdown.table((title, ">a step", ">first", ">last", ">rises"), rows)
