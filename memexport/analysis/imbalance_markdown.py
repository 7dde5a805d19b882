"""The ranks of a run next to one another, as GitHub Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memexport.analysis import markdown
from memexport.analysis.imbalance import Imbalance, RankDifference
from memexport.analysis.imbalance_report import difference_rows, difference_sentence, ranks_sentence
from memexport.analysis.page import UNKNOWN, signed_bytes
from memexport.analysis.text import human_bytes

if TYPE_CHECKING:
    from memexport.analysis.summary import Summary


def rank_blocks(summary: Summary) -> Iterator[list[str]]:
    """The ranks' peaks on each type of device, and what tells them apart; of one rank, nothing."""
    for device_type, imbalance in summary.ranks.items():
        yield [f"**{markdown.prose(ranks_sentence(device_type, imbalance))}**"]
        yield _peaks(imbalance)
        if imbalance.difference is not None:
            yield [markdown.prose(difference_sentence(imbalance, imbalance.difference))]
            yield from _difference(imbalance.difference)


def _peaks(imbalance: Imbalance) -> list[str]:
    rows = [
        (
            markdown.code(peak.device),
            human_bytes(peak.peak),
            signed_bytes(peak.peak - imbalance.median),
            peak.peak_phase or UNKNOWN,
            "odd one out" if peak.rank == imbalance.odd_rank else "",
        )
        for peak in imbalance.peaks
    ]
    if (more := imbalance.ranks - len(imbalance.peaks)) > 0:
        rows.append((f"… and {more:,} more", "", "", "", ""))
    return markdown.table(("rank", ">peak", ">from the median", "in phase", ""), rows)


def _difference(difference: RankDifference) -> Iterator[list[str]]:
    one, other = f">rank {difference.rank}", f">rank {difference.than_rank}"
    for title, differences in difference_rows(difference):
        rows = [
            (
                markdown.code(row.name),
                *map(human_bytes, (row.bytes, row.than_bytes)),
                signed_bytes(row.bytes - row.than_bytes),
            )
            for row in differences
        ]
        yield markdown.table((title, one, other, ">more"), rows)
