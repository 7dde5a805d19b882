"""Limits on a run of several ranks: each rank is judged, and the worst is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memexport.analysis.limits import Limits, Verdict, judge, limit_names
from memexport.analysis.summary import Summary

LISTED: Final = 10
"""How many ranks a text lists for each limit, the worst first; JSON and JUnit have all."""


@dataclass(frozen=True)
class RankRecording:
    """A rank of a run. `rank` and `world_size` are None where its recording does not say them."""

    name: str
    rank: int | None
    world_size: int | None
    summary: Summary


@dataclass(frozen=True)
class RankVerdicts:
    """The verdicts on one rank, in the order of `Limits`.

    Attributes:
        name: of its recording; None if there is none.
    """

    rank: int
    name: str | None
    verdicts: tuple[Verdict, ...]

    @property
    def is_kept(self) -> bool:
        """Whether it keeps every limit."""
        return all(verdict.is_kept for verdict in self.verdicts)


def judge_ranks(
    recordings: Sequence[RankRecording], limits: Limits, baseline: Mapping[int, Summary] | None = None
) -> tuple[RankVerdicts, ...]:
    """The verdicts on every rank, in order.

    A rank that the run or the baseline has, and that was not recorded, keeps no limit. Of `limits.devices`,
    each rank is judged by those that it has; one that no rank has is a limit that none keeps.

    Args:
        recordings: of the ranks. Where some do not say their rank, or two say the same, they are numbered in
            their order.
        limits: with the baseline None.
        baseline: the rank of the run that it may not exceed, by rank.
    """
    by_rank = dict(zip(_ranks(recordings), recordings, strict=True))
    known = {device for one in recordings for device in one.summary.devices}
    nowhere = tuple(device for device in limits.devices if device not in known)
    found = []
    for rank in sorted(_expected(by_rank) | (baseline or {}).keys()):
        of_rank, recording = _with_baseline(limits, rank, baseline), by_rank.get(rank)
        if recording is None:
            found.append(RankVerdicts(rank, None, _none_kept(of_rank)))
            continue
        devices = _own(limits.devices, recording.summary, nowhere)
        if devices or not limits.devices:
            own = dataclasses.replace(of_rank, devices=devices)
            found.append(RankVerdicts(rank, recording.name, judge(recording.summary, own)))
    return tuple(found)


def as_dict(ranks: Sequence[RankVerdicts]) -> dict[str, Any]:
    """What `memexport check --merge --json` prints: that of one recording, and each rank."""
    return {
        "passed": all(rank.is_kept for rank in ranks),
        "limits": [_limit_dict(rows) for rows in _by_limit(ranks)],
        "ranks": [
            {
                "rank": rank.rank,
                "path": rank.name,
                "passed": rank.is_kept,
                "limits": [verdict.to_dict() for verdict in rank.verdicts],
            }
            for rank in ranks
        ],
    }


def as_text(ranks: Sequence[RankVerdicts]) -> str:
    """Each limit's ranks, the worst first."""
    return "\n".join(line for rows in _by_limit(ranks) for line in _limit_lines(rows))


_Row = tuple[int, Verdict]
"""A rank, and the verdict of one limit on it."""


def _ranks(recordings: Sequence[RankRecording]) -> list[int]:
    said = [one.rank for one in recordings if one.rank is not None]
    return said if len(set(said)) == len(recordings) else list(range(len(recordings)))


def _expected(by_rank: Mapping[int, RankRecording]) -> set[int]:
    world = max((one.world_size or 0 for one in by_rank.values()), default=0)
    return by_rank.keys() | set(range(world))


def _with_baseline(limits: Limits, rank: int, baseline: Mapping[int, Summary] | None) -> Limits:
    if baseline is None:
        return limits
    other = next(iter(baseline.values()))
    nothing = dataclasses.replace(other, devices={}, growth={})
    return dataclasses.replace(limits, baseline=baseline.get(rank, nothing))


def _own(devices: Sequence[str], summary: Summary, nowhere: Sequence[str]) -> tuple[str, ...]:
    return tuple(device for device in devices if device in summary.devices or device in nowhere)


def _none_kept(limits: Limits) -> tuple[Verdict, ...]:
    return tuple(Verdict(name, ("there is no recording of it",), ()) for name in limit_names(limits))


def _by_limit(ranks: Sequence[RankVerdicts]) -> list[list[_Row]]:
    """The ranks of each limit, the worst first: farthest over it; then those that cannot be judged."""
    limits: dict[str, list[_Row]] = {}
    for rank in ranks:
        for verdict in rank.verdicts:
            limits.setdefault(verdict.limit, []).append((rank.rank, verdict))
    return [sorted(rows, key=_badness) for rows in limits.values()]


def _badness(row: _Row) -> tuple[bool, bool, int, int]:
    rank, verdict = row
    over = verdict.over_bytes
    return verdict.is_kept, over is None, -(over or 0), rank


def _limit_dict(rows: Sequence[_Row]) -> dict[str, Any]:
    reasons = [f"rank {rank}: {reason}" for rank, verdict in rows for reason in verdict.reasons]
    facts = [f"rank {rank}: {fact}" for rank, verdict in rows for fact in verdict.facts]
    return {
        "limit": rows[0][1].limit,
        "passed": not reasons,
        "worst_rank": rows[0][0],
        "reasons": reasons,
        "facts": facts,
    }


def _limit_lines(rows: Sequence[_Row]) -> list[str]:
    worst = f"rank {rows[0][0]}, the worst of {len(rows)}: " if len(rows) > 1 else f"rank {rows[0][0]}: "
    lines = rows[0][1].lines(worst)
    for rank, verdict in rows[1:LISTED]:
        lines += verdict.lines(f"rank {rank}: ")
    if more := rows[LISTED:]:
        failed = sum(not verdict.is_kept for _, verdict in more)
        rest = f"{failed:,} of them do not keep it" if failed else "all of them keep it"
        lines.append(f"{'FAIL' if failed else 'ok  '}  {more[0][1].limit}: {len(more):,} more ranks; {rest}")
    return lines
