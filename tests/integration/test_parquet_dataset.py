"""`convert --to parquet --by-rank`: a dataset that others read as it is, written here or on Dask."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import fsspec
import polars
import pyarrow.dataset
import pytest
from click.testing import CliRunner
from distributed import LocalCluster
from rank_recordings import MIB, recorded

from memexport import pipeline
from memexport.cli import main
from memexport.errors import InputError, OutputError, UsageError

ACTIVATIONS = [MIB, 2 * MIB, 7 * MIB, 3 * MIB]
NAMES = [f"run-{rank}.memx" for rank in range(len(ACTIVATIONS))]
BY_RANK = ["--to", "parquet", "--by-rank", "-o", "dataset/"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a recording of each of four ranks."""
    monkeypatch.chdir(tmp_path)
    for rank, (name, size) in enumerate(zip(NAMES, ACTIVATIONS, strict=True)):
        recorded(tmp_path / name, rank, size, len(ACTIVATIONS))
    return tmp_path


def convert(*arguments):
    """Call `memexport convert` in this process."""
    return CliRunner().invoke(main, ["convert", *map(str, arguments)], prog_name="memexport")


def files(folder):
    """What was written, by its path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.fixture
def dataset(folder):
    """The dataset of the four ranks."""
    result = convert(*NAMES, *BY_RANK)
    assert result.exit_code == 0, result.output
    return folder / "dataset"


class TestDataset:
    """A folder for each rank."""

    def test_each_rank_has_a_folder_that_readers_take_for_a_column(self, dataset):
        assert list(files(dataset)) == [f"rank={rank}/run-{rank}.parquet" for rank in range(4)]

    def test_duckdb_says_which_module_on_which_rank_made_the_peak(self, dataset):
        rows = duckdb.sql(
            f"SELECT rank, module, phase, allocated_bytes FROM read_parquet('{dataset}/**/*.parquet')"
            " WHERE kind IN ('operator', 'allocation') ORDER BY allocated_bytes DESC LIMIT 1"
        ).fetchall()
        assert rows == [(2, "net.fc", "forward", 17 * MIB)]

    def test_polars_and_arrow_have_the_rank_as_a_number(self, dataset):
        """So do Spark and Ray Data: Ray reads Parquet with Arrow."""
        frame = polars.read_parquet(dataset, hive_partitioning=True)
        peaks = frame.group_by("rank").agg(polars.col("allocated_bytes").max()).sort("rank")
        assert peaks.rows() == [(rank, 10 * MIB + size) for rank, size in enumerate(ACTIVATIONS)]
        table = pyarrow.dataset.dataset(dataset, partitioning="hive").to_table()
        assert str(table.schema.field("rank").type) == "int32"
        assert table.num_rows == 3 * len(ACTIVATIONS)

    def test_a_recording_without_a_rank_is_of_none(self, folder):
        recorded(folder / "other.memx", None, 5 * MIB, None)
        assert convert("run-3.memx", "other.memx", *BY_RANK).exit_code == 0
        query = "SELECT DISTINCT rank FROM read_parquet('dataset/**/*.parquet') ORDER BY 1"
        assert duckdb.sql(query).fetchall() == [(3,), (None,)]

    def test_what_is_there_is_not_replaced_unless_told_to(self, dataset):
        again = convert(*NAMES, *BY_RANK)
        assert again.exit_code == 4
        assert again.stderr.count("exists already") == len(NAMES)
        assert convert(*NAMES, *BY_RANK, "--force").exit_code == 0

    def test_several_ranks_in_one_file_are_refused_and_nothing_is_lost(self, folder):
        assert convert(*NAMES, "-o", "all.memx").exit_code == 0
        refused = convert("all.memx", *BY_RANK)
        assert refused.exit_code == 2
        assert "events of rank" in refused.stderr
        assert files(folder) == {}
        assert convert("all.memx", "-o", "all.parquet").exit_code == 0
        query = "SELECT list(DISTINCT rank ORDER BY rank) FROM 'all.parquet'"
        assert duckdb.sql(query).fetchall() == [([0, 1, 2, 3],)]

    def test_it_is_written_behind_urls(self, folder):
        filesystem = fsspec.filesystem("memory")
        filesystem.store.clear()
        for name in NAMES:
            filesystem.pipe(f"/in/{name}", (folder / name).read_bytes())
        urls = [f"memory://in/{name}" for name in NAMES]
        result = convert(*urls, "--to", "parquet", "--by-rank", "-o", "memory://dataset/")
        assert result.exit_code == 0, result.output
        assert convert(*NAMES, *BY_RANK).exit_code == 0
        stored = {path: filesystem.cat(path) for path in filesystem.find("/dataset")}
        assert stored == {f"/dataset/{path}": data for path, data in files(folder / "dataset").items()}
        filesystem.store.clear()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--by-rank"], "-o DIR/"),
            (["--by-rank", "-o", "x.parquet"], "-o DIR/"),
            (["--by-rank", "--to", "jsonl", "-o", "dataset/"], "not of jsonl"),
            (["--scheduler", "tcp://localhost:1", "-o", "x/"], "--engine dask"),
            (["--engine", "dask", "--to", "jsonl", "-o", "-"], "neither stdin nor stdout"),
        ],
        ids=str,
    )
    def test_what_makes_no_sense_is_wrong_usage(self, folder, arguments, message):
        result = convert("run-0.memx", *arguments)
        assert (result.exit_code, files(folder)) == (2, {})
        assert message in result.stderr


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes."""
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as started:
        yield started


class TestDask:
    """One task per recording."""

    def test_a_cluster_writes_the_very_bytes_that_this_process_writes(self, folder, cluster):
        assert convert(*NAMES, *BY_RANK).exit_code == 0
        result = convert(
            *NAMES, *BY_RANK[:-1], "on-dask/", "--engine", "dask", "--scheduler", cluster.scheduler_address
        )
        assert result.exit_code == 0, result.output
        assert files(folder / "on-dask") == files(folder / "dataset")
        assert "warning: too warm" in result.stderr
        assert result.stderr.count("Wrote ") == len(NAMES)

    def test_one_that_fails_is_said_at_the_end_and_the_others_are_done(self, folder, cluster):
        (folder / "bad.memx").write_bytes(b"nonsense")
        names = ["run-0.memx", "bad.memx", "missing.memx", "run-3.memx"]
        on_dask = ["--engine", "dask", "--scheduler", cluster.scheduler_address]
        result = convert(*names, *BY_RANK, *on_dask)
        assert result.exit_code == 3
        assert list(files(folder / "dataset")) == ["rank=0/run-0.parquet", "rank=3/run-3.parquet"]
        assert "bad.memx: not a recording" in result.stderr
        assert "missing.memx: No such file" in result.stderr
        assert convert(*NAMES, *BY_RANK, *on_dask).exit_code == 4

    def test_ranks_are_merged_in_one_task(self, folder, cluster):
        on_dask = ["--engine", "dask", "--scheduler", cluster.scheduler_address]
        assert convert(*NAMES, "-o", "all.parquet", *on_dask).exit_code == 0
        assert duckdb.sql("SELECT count(*) FROM 'all.parquet'").fetchall() == [(12,)]

    def test_without_a_scheduler_there_is_a_cluster_of_this_machine(self, folder):
        command = [sys.executable, "-m", "memexport", "convert", *NAMES, *BY_RANK, "--engine", "dask"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == [
            *("Wrote", "memexport:", "Wrote", "Wrote", "Wrote")
        ]
        assert len(files(folder)) == len(NAMES)

    def test_a_scheduler_that_does_not_answer_is_wrong_usage(self, folder, monkeypatch):
        monkeypatch.setattr("memexport.cli.dask_engine._PATIENCE", "1s")
        for address in ("tcp://127.0.0.1:1", "nonsense://x"):
            result = convert(*NAMES, *BY_RANK, "--engine", "dask", "--scheduler", address)
            assert result.exit_code == 2
            assert "no Dask scheduler answers" in result.stderr

    def test_without_dask_it_says_what_to_install(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "distributed", None)
        result = convert(*NAMES, *BY_RANK, "--engine", "dask")
        assert result.exit_code == 2
        assert "pip install 'memexport[dask]'" in result.stderr


@pytest.mark.parametrize(
    "error",
    [
        UsageError("what", hint="next"),
        InputError("a.memx", "byte 4", "is damaged", hint="next"),
        OutputError(Path("a.memx"), None, "exists already"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_from_another_process_with_all_that_it_says(error):
    import pickle

    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.hint) == (type(error), str(error), error.hint)


def test_a_recording_can_be_had_as_a_table_of_all_ranks(folder):
    with pipeline.merge([folder / name for name in NAMES]) as merged:
        assert merged.to_arrow()["rank"].unique().to_pylist() == [0, 1, 2, 3]
