"""Ray Data reads the dataset as DuckDB does. Runs where ray is: `make test-far`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from far_dataset import EXTREME, RANKS, Dataset, shown

pytest.importorskip("ray.data", reason="not installed: make test-far")

import ray
from ray.data.aggregate import Count, Max, Min, Sum
from ray.data.datasource.partitioning import Partitioning
from ray.data.expressions import col

HIVE = Partitioning("hive", field_types={"rank": int})


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two cores of this machine."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=200 << 20)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def events(dataset: Dataset) -> ray.data.Dataset:
    """The dataset, with ranks as numbers."""
    folder = str(dataset.folder / "dataset")
    return ray.data.read_parquet(folder, partitioning=HIVE, override_num_blocks=2).materialize()


def test_counts_sums_and_extremes_are_those_of_duckdb(events: ray.data.Dataset, dataset: Dataset) -> None:
    """The rank, and of DuckDB's columns those that Ray has aggregates for."""
    found = events.groupby("rank").aggregate(
        Count(),
        Sum("size_bytes"),
        Max("address"),
        Sum("duration_ns"),
        Min("time_unix_ns"),
        Max("time_unix_ns"),
    )
    got = [tuple(row.values()) for row in found.sort("rank").take_all()]
    assert got == [(row[0], row[1], *row[5:]) for row in dataset.per_rank]


def test_it_says_which_module_on_which_rank_made_the_peak(events: ray.data.Dataset, dataset: Dataset) -> None:
    is_candidate = col("kind").is_in(["operator", "allocation"]) & (col("rank") < EXTREME)
    known = events.filter(expr=is_candidate & col("allocated_bytes").is_not_null())
    first = known.sort(["allocated_bytes", "time_unix_ns"], descending=[True, False]).take(1)[0]
    names = ("rank", "device", "module", "name", "phase", "step", "allocated_bytes")
    assert [tuple(first[name] for name in names)] == dataset.peak


def test_extremes_and_nulls_come_through(events: ray.data.Dataset) -> None:
    rows = events.filter(expr=col("rank") == EXTREME).sort("time_unix_ns").take_all()
    names = ("kind", "name", "module", "device", "step", "address")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("allocation", None, "nét.層\n1", "cuda:0", 0, 2**63 + 5),
        ("operator", "aten::mm", "nét.層\n1", None, None, None),
        ("release", None, None, "cuda:0", None, 2**64 - 1),
    ]


def test_unless_told_the_type_it_takes_ranks_for_text(dataset: Dataset, without_rank: Path) -> None:
    """What docs/ranks.md says of Ray."""
    for folder, ranks in (
        (dataset.folder / "dataset", [str(rank) for rank in range(RANKS + 1)]),
        (without_rank, ["3", "__HIVE_DEFAULT_PARTITION__"]),
    ):
        plain = ray.data.read_parquet(str(folder), override_num_blocks=2)
        assert sorted({row["rank"] for row in plain.select_columns("rank").take_all()}) == ranks


def test_what_the_page_shows_runs(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    exec(shown("ranks.md", "peak_ray.py", dataset.folder))
    assert f"'rank': {EXTREME}}}" in capsys.readouterr().out
