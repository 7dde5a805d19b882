"""The ranks of a run next to one another, for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from memexport.analysis.imbalance import Difference, Imbalance, RankDifference
from memexport.analysis.page import UNKNOWN, heading, new_table, signed_bytes
from memexport.analysis.text import human_bytes, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from memexport.analysis.summary import Summary


def rank_parts(summary: Summary) -> list[RenderableType]:
    """The ranks' peaks on each type of device as a table, and what tells them apart; of one rank, nothing."""
    parts: list[RenderableType] = []
    for device_type, imbalance in summary.ranks.items():
        parts += ["", heading(ranks_sentence(device_type, imbalance)), _peaks(imbalance)]
        if imbalance.difference is not None:
            parts += ["", *_difference(imbalance, imbalance.difference)]
    return parts


def with_listed_ranks(summary: Summary) -> Summary:
    """Of more ranks than the tables list, only the devices of the two ranks that are compared."""
    if all(found.ranks == len(found.peaks) for found in summary.ranks.values()):
        return summary
    listed = {device for found in summary.ranks.values() for device in _compared(found)}
    devices = {name: device for name, device in summary.devices.items() if name in listed}
    growth = {name: growth for name, growth in summary.growth.items() if name in listed}
    return dataclasses.replace(summary, devices=devices, growth=growth)


def _compared(imbalance: Imbalance) -> set[str]:
    """The devices of the ranks that differ; where none does, of the highest and the lowest."""
    by_rank = {peak.rank: peak.device for peak in imbalance.peaks}
    difference = imbalance.difference
    if difference is None:
        return {imbalance.peaks[0].device, imbalance.peaks[-1].device}
    return {by_rank[rank] for rank in (difference.rank, difference.than_rank) if rank in by_rank}


def ranks_sentence(device_type: str, imbalance: Imbalance) -> str:
    """How many ranks there are, and how far their peaks lie apart."""
    share = f" ({imbalance.spread / imbalance.median:.1%})" if imbalance.median else ""
    return (
        f"{imbalance.ranks} ranks on {device_type}: median peak {human_bytes(imbalance.median)},"
        f" spread {human_bytes(imbalance.spread)}{share}"
    )


def _peaks(imbalance: Imbalance) -> Table:
    table = new_table("", "rank", ">peak", ">from the median", "in phase", "")
    for peak in imbalance.peaks:
        odd = "odd one out" if peak.rank == imbalance.odd_rank else ""
        away = signed_bytes(peak.peak - imbalance.median)
        table.add_row(printable(peak.device), human_bytes(peak.peak), away, peak.peak_phase or UNKNOWN, odd)
    if (more := imbalance.ranks - len(imbalance.peaks)) > 0:
        table.add_row(f"… and {more:,} more", "", "", "", "")
    return table


def difference_sentence(imbalance: Imbalance, difference: RankDifference) -> str:
    """Which rank peaks higher or lower than which, and by how much."""
    odd = "The odd one out" if imbalance.odd_rank is not None else "The highest"
    more = f"{human_bytes(abs(difference.bytes))} {'more' if difference.bytes >= 0 else 'less'}"
    return f"{odd}, rank {difference.rank}, peaks with {more} than rank {difference.than_rank}"


def difference_rows(difference: RankDifference) -> Iterator[tuple[str, Sequence[Difference]]]:
    """What the two ranks differ in, under its title; nothing where they do not."""
    if difference.categories:
        yield "at the peak, by category", difference.categories
    if difference.phases:
        yield "highest in a phase", difference.phases


def _difference(imbalance: Imbalance, difference: RankDifference) -> Iterator[RenderableType]:
    one, other = f"rank {difference.rank}", f"rank {difference.than_rank}"
    yield difference_sentence(imbalance, difference)
    for title, rows in difference_rows(difference):
        yield from ("", _rows(title, one, other, rows))


def _rows(what: str, one: str, other: str, rows: Sequence[Difference]) -> Table:
    table = new_table("", what, f">{one}", f">{other}", ">more")
    for row in rows:
        sizes = (
            human_bytes(row.bytes),
            human_bytes(row.than_bytes),
            signed_bytes(row.bytes - row.than_bytes),
        )
        table.add_row(row.name, *sizes)
    return table
