"""A summary for an issue or a pull request: the page of `report`, as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memexport.analysis import markdown
from memexport.analysis.report import LISTED, headline, largest, peak_sentences, trouble_sentences
from memexport.analysis.report_growth import growth_rows, is_suspicious, steady_sentence
from memexport.analysis.text import human_bytes

if TYPE_CHECKING:
    from memexport.analysis.device_summary import DeviceSummary
    from memexport.analysis.growth import DeviceGrowth
    from memexport.analysis.summary import Summary


def render_markdown(summary: Summary) -> str:
    """The whole summary, ending without a line feed."""
    blocks = [[f"**{markdown.prose(sentence)}**"] for sentence in peak_sentences(summary)]
    blocks.append([markdown.prose(headline(summary))])
    if summary.devices:
        blocks.append(_counters(summary))
    for name, device in summary.devices.items():
        blocks += _live_at_peak(name, device, summary)
    if summary.top_operators:
        blocks.append(_operators(summary))
    for name, growth in summary.growth.items():
        if growth is not None:
            blocks.append(_growth(name, growth))
    blocks += [[markdown.prose(sentence)] for sentence in trouble_sentences(summary)]
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
    return [
        markdown.table(
            (f"at the peak{of_device}, by {what}", ">bytes", ">share", ""),
            markdown.share_rows(largest(rows, total), total),
        )
        for what, rows in listings
        # That all is of nobody is no news.
        if {row_name for row_name, _ in rows} - {None, "unattributed"}
    ]


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
