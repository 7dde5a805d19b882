"""`s3://`: a real S3 protocol over HTTP, on this machine, by way of s3fs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars
import pytest
import s3fs
from click.testing import CliRunner
from moto.server import ThreadedMotoServer
from rank_recordings import MIB, recorded

import memexport
from memexport import Tracker, remote
from memexport.cli import main

RANKS = [MIB, 7 * MIB, 2 * MIB]
TRAIN = """
import torch
model = torch.nn.Linear(8, 8)
model(torch.ones(2, 8)).sum().backward()
print("trained")
"""


@pytest.fixture(scope="module")
def endpoint():
    """The server's address; it runs until the module is over."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch, tmp_path):
    """A filesystem with an empty bucket called "runs", and what a user of S3 has in the environment."""
    variables = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_MAX_ATTEMPTS": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.chdir(tmp_path)
    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem()
    filesystem.mkdir("runs")
    yield filesystem
    filesystem.rm("runs", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, empty; also that of other processes."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def ranks(bucket, tmp_path):
    """The recordings of three ranks in the bucket, under these names."""
    for rank, size in enumerate(RANKS):
        path = recorded(tmp_path / f"run-{rank}.memx", rank, size, len(RANKS))
        bucket.put_file(path, f"runs/job/run-{rank}.memx")
    bucket.pipe("runs/job/notes.txt", b"text")
    bucket.pipe("runs/job/run-x.memx/part", b"in what looks like a folder")
    return [f"s3://runs/job/run-{rank}.memx" for rank in range(len(RANKS))]


def memexport_cli(*arguments):
    """Call `memexport` in this process."""
    return CliRunner().invoke(main, list(arguments), prog_name="memexport")


def memexport_run(*arguments, cwd):
    """`memexport run` in a process of its own."""
    (cwd / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "memexport", "run", *arguments, "train.py"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


class TestReading:
    """Every command that takes an INPUT."""

    def test_a_pattern_stands_for_the_files_that_fit(self, ranks, bucket):
        assert remote.matching("s3://runs/job/run-*.memx") == ranks
        assert remote.matching("s3://runs/*/run-1.memx") == [ranks[1]]

    def test_ranks_are_merged_by_a_pattern(self, ranks):
        done = memexport_cli("summary", "--merge", "--json", "s3://runs/job/run-*.memx")
        assert done.exit_code == 0, done.output
        assert list(json.loads(done.stdout)["devices"]) == [f"rank {rank} cuda:0" for rank in range(3)]

    @pytest.mark.parametrize(
        ("arguments", "exit_code"),
        [(["info"], 0), (["check", "--max-peak", "16MiB"], 1), (["summary"], 0)],
        ids=lambda value: value[0] if isinstance(value, list) else None,
    )
    def test_other_commands_take_each(self, ranks, arguments, exit_code):
        done = memexport_cli(*arguments, "s3://runs/job/run-*.memx")
        assert done.exit_code == exit_code, done.output
        assert [line for line in done.stdout.splitlines() if line.startswith("==>")] == [
            f"==> {name} <==" for name in ranks
        ]

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("s3://runs/missing.memx", "s3://runs/missing.memx: No such file"),
            ("s3://nowhere/run.memx", "s3://nowhere/run.memx: The specified bucket does not exist"),
            ("s3://runs/job/no-*.memx", "s3://runs/job/no-*.memx: no file has such a name"),
            ("s3://nowhere/*.memx", "s3://nowhere/*.memx: no file has such a name"),
        ],
    )
    def test_what_is_not_there_is_an_input_error(self, ranks, url, message):
        done = memexport_cli("summary", url)
        assert (done.exit_code, done.stdout) == (3, "")
        assert message in done.stderr

    def test_a_file_that_is_replaced_while_it_is_read_is_an_input_error(self, bucket, monkeypatch, temporary):
        bucket.pipe("runs/run.memx", b"x" * 4096)
        monkeypatch.setattr(remote, "CHUNK_BYTES", 1024)
        monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", 1024)

        def replace(_copied, _share):
            other = s3fs.S3FileSystem(skip_instance_cache=True)
            other.pipe("runs/run.memx", b"y" * 4096)

        with (temporary / "copy").open("wb") as copy, pytest.raises(memexport.InputError) as raised:
            remote.fetch("s3://runs/run.memx", copy, replace)
        assert "s3://runs/run.memx: " in str(raised.value)


class TestWriting:
    """`convert` to a bucket."""

    def test_a_dataset_is_read_from_the_bucket_by_its_ranks(self, ranks, endpoint):
        arguments = ["--to", "parquet", "--by-rank", "-o", "s3://runs/dataset/"]
        done = memexport_cli("convert", "s3://runs/job/run-*.memx", *arguments)
        assert done.exit_code == 0, done.output
        frame = polars.read_parquet(
            "s3://runs/dataset/**/*.parquet",
            hive_partitioning=True,
            storage_options={"aws_endpoint_url": endpoint, "aws_allow_http": "true"},
        )
        peaks = frame.group_by("rank").agg(polars.col("allocated_bytes").max()).sort("rank")
        assert peaks.rows() == [(rank, 10 * MIB + size) for rank, size in enumerate(RANKS)]

    def test_an_object_is_replaced_only_when_told_to(self, ranks, bucket):
        convert = ["convert", ranks[0], "-o", "s3://runs/all.jsonl"]
        assert memexport_cli(*convert).exit_code == 0
        refused = memexport_cli(*convert)
        assert refused.exit_code == 4
        assert "s3://runs/all.jsonl: exists already" in refused.stderr
        assert memexport_cli(*convert, "--force").exit_code == 0

    def test_a_bucket_that_is_not_there_is_said_before_anything_is_converted(self, ranks, temporary):
        done = memexport_cli("convert", "run-0.memx", "-o", "s3://nowhere/run.jsonl")
        assert done.exit_code == 4
        assert "s3://nowhere/run.jsonl: The specified bucket does not exist" in done.stderr
        assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "Could not connect"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "Unable to locate credentials"),
    ],
    ids=["refused", "no credentials"],
)
def test_a_service_that_cannot_be_reached_is_said_in_a_line(ranks, monkeypatch, variables, message):
    for name, value in variables.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    for exit_code, arguments in ((3, ["info", ranks[0]]), (4, ["convert", "run-0.memx", "-o", ranks[0]])):
        done = memexport_cli(*arguments)
        assert done.exit_code == exit_code
        assert f"memexport: {ranks[0]}: " in done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.output


class TestRecording:
    """A program whose recording goes to a bucket."""

    def test_a_tracker_uploads_when_it_is_over(self, bucket, temporary):
        import torch

        with Tracker(exporters=["s3://runs/live.memx", "s3://runs/live.jsonl"]):
            torch.ones(3)
            assert not bucket.exists("runs/live.memx")
        with memexport.open("s3://runs/live.memx") as recording:
            assert recording.summary().operators == 1
        assert bucket.exists("runs/live.jsonl")
        assert list(temporary.iterdir()) == []

    def test_a_run_uploads_and_says_where_the_recording_is_until_then(self, bucket, tmp_path, temporary):
        done = memexport_run("-o", "s3://runs/run.memx", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        assert f"until then, see {temporary}/memexport-*-run.memx" in done.stderr
        assert "Wrote s3://runs/run.memx." in done.stderr
        assert bucket.exists("runs/run.memx")
        assert list(temporary.iterdir()) == []

    @pytest.mark.parametrize("url", ["s3://runs/there.memx", "s3://nowhere/run.memx"])
    def test_a_run_that_could_not_be_uploaded_is_refused_before_it_begins(self, bucket, tmp_path, url):
        bucket.pipe("runs/there.memx", b"precious")
        done = memexport_run("-o", url, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (4, "")
        assert url in done.stderr
        assert bucket.cat("runs/there.memx") == b"precious"

    def test_an_upload_that_fails_loses_nothing_and_the_program_ends_as_ever(
        self, bucket, tmp_path, temporary
    ):
        done = memexport_run("--force", "-o", "s3://nowhere/run.memx", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
        (kept,) = temporary.iterdir()
        assert f"The specified bucket does not exist; what was recorded is in {kept}" in done.stderr
        assert "Traceback" not in done.stderr
        assert "Wrote" not in done.stderr
        with memexport.open(kept) as recording:
            assert recording.summary().operators > 0

    def test_a_killed_run_leaves_nothing_in_the_bucket_and_its_recording_here(
        self, bucket, tmp_path, temporary
    ):
        (tmp_path / "train.py").write_text(
            TRAIN + "import time; print('ready', flush=True); time.sleep(60)\n"
        )
        command = [sys.executable, "-m", "memexport", "run", "-o", "s3://runs/run.memx", "train.py"]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        assert program.stdout is not None
        while program.stdout.readline() != "ready\n":
            assert program.poll() is None
        _wait_for_batches(temporary)
        program.kill()
        program.wait()
        (kept,) = temporary.iterdir()
        with memexport.open(kept) as recording:
            assert recording.summary().operators > 0
        assert not bucket.exists("runs/run.memx")


def _wait_for_batches(folder: Path) -> None:
    """Until the only file in the folder has more than its header."""
    deadline = time.monotonic() + 30
    while not any(_events(path) for path in folder.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _events(path: Path) -> int:
    try:
        with memexport.open(path) as recording:
            return sum(map(len, recording.batches()))
    except memexport.InputError:
        return 0


def test_what_fsspec_itself_is_told_by_the_environment_counts(ranks, endpoint, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "AWS_ENDPOINT_URL"}
    command = [sys.executable, "-m", "memexport", "info", ranks[0]]
    done = subprocess.run(
        command, env=environment | {"FSSPEC_S3_ENDPOINT_URL": endpoint}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("url", ["gs://runs/run.memx", "gs://runs/run-*.memx"])
def test_a_protocol_without_its_package_is_wrong_usage_and_says_what_to_install(url, monkeypatch, bucket):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    done = memexport_cli("info", url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "install gcsfs" in done.stderr
