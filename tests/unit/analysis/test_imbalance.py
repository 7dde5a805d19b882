"""How ranks compare: who is the odd one out, and what it has more of."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from rank_recordings import MIB, recorded

from memexport import pipeline
from memexport.analysis.imbalance import LISTED, Imbalance, RankPeak, compare


def peak(rank: int, size: int, **others: Any) -> tuple[str, RankPeak]:
    """A rank that peaks at so many bytes on its GPU."""
    given = {"categories": {"parameter": size}, "phases": {}, "peak_phase": None, **others}
    return "cuda", RankPeak(rank, f"rank {rank} cuda:0", size, **given)


def compared(*sizes: int) -> Imbalance:
    """Ranks with these peaks."""
    return compare(peak(rank, size) for rank, size in enumerate(sizes))["cuda"]


@pytest.mark.parametrize(
    ("sizes", "odd"),
    [
        ((100, 100, 100, 500), 3),
        ((100, 100, 5, 100), 2),
        ((100, 100, 100, 100), None),
        ((100, 500), None),
        ((100, 101, 500), 2),
        ((100, 150, 200), None),
        ((100, 110, 90, 105, 95, 100), None),
        ((100, 110, 90, 105, 95, 200), 5),
        ((10_000, 10_000, 10_000, 10_099), None),
        ((10_000, 10_000, 10_000, 10_100), 3),
        ((0, 0, 0, 7), 3),
        ((0, 0, 0), None),
    ],
    ids=str,
)
def test_a_rank_is_odd_that_is_far_from_all_others_and_not_by_a_trifle(sizes, odd):
    assert compared(*sizes).odd_rank == odd


def test_ranks_that_vary_have_no_odd_one():
    """Of a thousand that are normally distributed."""
    numbers = random.Random(7)
    sizes = [int(numbers.gauss(8_000 * MIB, 300 * MIB)) for _ in range(1_000)]
    assert compared(*sizes).odd_rank is None
    assert compared(*sizes, 10_500 * MIB).odd_rank == 1_000


def test_median_spread_and_deviation_are_those_of_the_peaks():
    found = compared(10, 40, 20, 30)
    assert (found.ranks, found.median, found.spread, found.deviation) == (4, 25, 30, 10)


def test_of_many_ranks_the_ends_and_the_middle_are_listed():
    assert [row.rank for row in compared(*range(LISTED)).peaks] == list(range(LISTED))
    rows = [row.rank for row in compared(*range(1_000)).peaks]
    assert rows == [999, 998, 997, 996, 500, 499, 3, 2, 1, 0]


def test_the_odd_rank_is_compared_with_a_typical_one():
    ranks = [peak(rank, 100, phases={"forward": 90, "backward": 100}) for rank in range(4)]
    categories = {"parameter": 100, "activation": 250, "input": 10}
    ranks.append(peak(4, 360, categories=categories, phases={"forward": 360, "backward": 100}))
    difference = compare(ranks)["cuda"].difference
    assert difference is not None
    assert (difference.rank, difference.bytes) == (4, 260)
    assert [(row.name, row.bytes, row.than_bytes) for row in difference.categories] == [
        ("activation", 250, 0),
        ("input", 10, 0),
    ]
    assert [(row.name, row.bytes, row.than_bytes) for row in difference.phases] == [("forward", 360, 90)]


def test_without_an_odd_one_the_highest_is_compared_with_the_lowest():
    difference = compared(100, 150, 200).difference
    assert difference is not None
    assert (difference.rank, difference.than_rank, difference.bytes) == (2, 0, 100)
    assert compared(1_000, 1_001).difference is None


def test_a_rank_with_several_devices_counts_with_the_highest_and_types_are_apart():
    ranks = [("cuda", RankPeak(0, f"rank 0 cuda:{i}", 10 + i, None, {}, {})) for i in (1, 0)]
    ranks += [peak(1, 11), ("cpu", RankPeak(0, "rank 0 cpu", 5, None, {}, {}))]
    found = compare(ranks)
    assert list(found) == ["cuda"]
    assert [row.device for row in found["cuda"].peaks] == ["rank 0 cuda:1", "rank 1 cuda:0"]


# ---- from recordings


def summarized(folder: Path, activations: list[int]) -> Any:
    """The summary of ranks with these activations."""
    count = len(activations)
    paths = [recorded(folder / f"{rank}.memx", rank, size, count) for rank, size in enumerate(activations)]
    with pipeline.merge(paths) as merged:
        return merged.summary()


def test_a_summary_of_several_ranks_says_what_the_odd_one_has_more_of(tmp_path):
    summary = summarized(tmp_path, [MIB, MIB, 5 * MIB, MIB])
    found = json.loads(json.dumps(summary.to_dict()))["ranks"]
    assert list(found) == ["cuda"]
    assert (found["cuda"]["ranks"], found["cuda"]["median"], found["cuda"]["odd_rank"]) == (4, 11 * MIB, 2)
    assert found["cuda"]["peaks"][2] == {
        "rank": 2,
        "device": "rank 2 cuda:0",
        "peak": 15 * MIB,
        "peak_phase": "forward",
        "categories": {"parameter": 10 * MIB, "activation": 5 * MIB},
        "phases": {"forward": 15 * MIB, "backward": 10 * MIB},
    }
    assert found["cuda"]["difference"] == {
        "rank": 2,
        "than_rank": 0,
        "bytes": 4 * MIB,
        "categories": [{"name": "activation", "bytes": 5 * MIB, "than_bytes": MIB}],
        "phases": [{"name": "forward", "bytes": 15 * MIB, "than_bytes": 11 * MIB}],
    }


def test_the_report_shows_it(tmp_path):
    lines = str(summarized(tmp_path, [MIB, MIB, 5 * MIB, MIB])).splitlines()
    assert "4 ranks on cuda: median peak 11.00 MiB, spread 4.00 MiB (36.4%)" in lines
    assert "The odd one out, rank 2, peaks with 4.00 MiB more than rank 0" in lines
    (row,) = [line for line in lines if line.endswith("odd one out")]
    assert row.split()[:5] == ["rank", "2", "cuda:0", "15.00", "MiB"]
    (difference,) = [line for line in lines if line.startswith("activation") and "+" in line]
    assert difference.split() == ["activation", "5.00", "MiB", "1.00", "MiB", "+4.00", "MiB"]
    assert max(map(len, lines)) <= 80


def test_a_page_does_not_grow_with_the_ranks(tmp_path):
    sizes = [MIB + 4096 * rank for rank in range(40)]
    page = str(summarized(tmp_path, sizes))
    assert "… and 30 more" in page
    assert len(page.splitlines()) <= len(str(summarized(tmp_path, sizes[:10])).splitlines())


def test_a_recording_of_one_rank_has_no_ranks_to_compare(tmp_path):
    with pipeline.open(recorded(tmp_path / "0.memx", 0, MIB, 4)) as recording:
        summary = recording.summary()
    assert "ranks" not in summary.to_dict()
    assert "ranks on" not in str(summary)
