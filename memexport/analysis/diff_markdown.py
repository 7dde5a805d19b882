"""A diff for an issue or a pull request, as GitHub Markdown."""

from __future__ import annotations

from memexport.analysis import markdown
from memexport.analysis.diff import DeviceDiff, Diff, changed
from memexport.analysis.diff_report import (
    LISTED,
    gap_sentence,
    size_cells,
    step_rows,
    steps_sentence,
    unmatched_sentences,
)
from memexport.analysis.page import signed_bytes


def render_markdown(diff: Diff) -> str:
    """The whole diff, ending without a line feed."""
    blocks = [[f"A: {markdown.code(diff.a)}, B: {markdown.code(diff.b)}"]]
    for name, device in diff.devices.items():
        blocks.append([f"**{markdown.prose(gap_sentence(name, device))}**"])
        blocks += _device(device)
    blocks += [[markdown.prose(sentence)] for sentence in unmatched_sentences(diff)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _device(device: DeviceDiff) -> list[list[str]]:
    blocks = []
    if device.rows:
        rows = [(markdown.code(name), *size_cells(a, b)) for name, a, b in device.by("category")]
        blocks.append(markdown.table(("at the peaks, by category", ">A", ">B", ">change"), rows))
    if _has_changes(device):
        blocks.append(_changes(device))
    if device.steps:
        blocks.append([f"{steps_sentence(device)}:"])
        columns = (">step", ">A peak", ">B peak", ">change", ">A time", ">B time")
        blocks.append(markdown.table(columns, step_rows(device.steps)))
    return blocks


def _has_changes(device: DeviceDiff) -> bool:
    return any(row.change for row in device.rows)


def _changes(device: DeviceDiff) -> list[str]:
    shown, rest = changed(device.rows, LISTED)
    rows = [
        (*map(markdown.code, (row.category, row.module, row.operator)), signed_bytes(row.change))
        for row in shown
    ]
    if rest:
        rows.append((f"{len(rest):,} more", "", "", signed_bytes(sum(row.change for row in rest))))
    return markdown.table(("category", "module", "operator", ">change"), rows)
