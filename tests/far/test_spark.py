"""Spark reads the dataset as DuckDB does. Runs where pyspark and a Java are: `make test-far`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from far_dataset import EXTREME, PEAK, PER_RANK, RANKS, Dataset, shown

pytest.importorskip("pyspark", reason="not installed: make test-far")
if shutil.which("java") is None:
    pytest.skip("Spark needs a Java", allow_module_level=True)

from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Two threads of this machine."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def events(spark: SparkSession, dataset: Dataset) -> None:
    """The dataset as the table that the queries name."""
    spark.read.parquet(str(dataset.folder / "dataset")).createOrReplaceTempView("events")


def rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    """What it gives."""
    return [tuple(row) for row in spark.sql(query).collect()]


def test_every_column_has_a_type_that_holds_it(spark: SparkSession, events: None) -> None:
    """Spark has no unsigned integers: it takes a decimal."""
    types = dict(spark.table("events").dtypes)
    assert types.pop("address") == "decimal(20,0)"
    assert (types.pop("rank"), types.pop("step")) == ("int", "int")
    assert {kind for name, kind in types.items() if name.endswith(("_ns", "_bytes"))} == {"bigint"}
    assert {kind for name, kind in types.items() if not name.endswith(("_ns", "_bytes"))} == {"string"}


def test_counts_sums_and_extremes_are_those_of_duckdb(
    spark: SparkSession, events: None, dataset: Dataset
) -> None:
    assert rows(spark, PER_RANK) == dataset.per_rank
    assert [row[0] for row in dataset.per_rank] == list(range(RANKS + 1))


def test_it_says_which_module_on_which_rank_made_the_peak(
    spark: SparkSession, events: None, dataset: Dataset
) -> None:
    assert rows(spark, PEAK) == dataset.peak
    assert dataset.peak[0][0] == 2


def test_extremes_and_nulls_come_through(spark: SparkSession, events: None) -> None:
    query = f"SELECT kind, name, module, device, step, address FROM events WHERE rank = {EXTREME}"
    assert rows(spark, query + " ORDER BY time_unix_ns") == [
        ("allocation", None, "nét.層\n1", "cuda:0", 0, 2**63 + 5),
        ("operator", "aten::mm", "nét.層\n1", None, None, None),
        ("release", None, None, "cuda:0", None, 2**64 - 1),
    ]


def test_a_recording_without_a_rank_has_null(spark: SparkSession, without_rank: Path) -> None:
    counts = spark.read.parquet(str(without_rank)).groupBy("rank").count().orderBy("rank").collect()
    assert [tuple(row) for row in counts] == [(None, 3), (3, 3)]


def test_what_the_page_shows_runs(
    spark: SparkSession, dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(shown("ranks.md", "peak_spark.py", dataset.folder))
    assert f"|{EXTREME}   |cuda:0|" in capsys.readouterr().out
