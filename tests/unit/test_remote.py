"""URLs: which of them stand for several files, and what is said of those that cannot be reached."""

from __future__ import annotations

import os

import fsspec
import pytest

from memexport import remote
from memexport.errors import InputError, OutputError


@pytest.fixture
def memory():
    """The filesystem behind memory:// URLs, with three recordings and a folder."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name in ("run-1.memx", "run-0.memx", "old/run-0.memx", "run-x.memx/file"):
        filesystem.pipe(f"/job/{name}", b"x")
    yield filesystem
    filesystem.store.clear()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/run-*.memx", True),
        ("s3://bucket/*/run.memx", True),
        ("file:///tmp/run-*.memx", True),
        ("s3://bucket/run-[0].memx", False),
        ("s3://bucket*", False),
        ("https://host/run-*.memx", False),
        ("run-*.memx", False),
    ],
)
def test_a_star_in_the_path_of_a_url_stands_for_several_files(path, expected):
    assert remote.is_pattern(path) is expected


def test_files_are_found_by_name_in_their_order_and_folders_are_not(memory):
    assert remote.matching("memory://job/run-*.memx") == [
        "memory://job/run-0.memx",
        "memory://job/run-1.memx",
    ]
    assert remote.matching("memory://job/*/run-0.memx") == ["memory://job/old/run-0.memx"]


def test_the_names_are_written_as_the_pattern_was(tmp_path):
    (tmp_path / "run-0.memx").touch()
    assert remote.matching(f"file://{tmp_path}/*.memx") == [f"file://{tmp_path}/run-0.memx"]


@pytest.mark.parametrize("pattern", ["memory://job/none-*.memx", "memory://nowhere/*", "nonsense://x/*"])
def test_a_pattern_that_fits_nothing_is_an_input_error(memory, pattern):
    with pytest.raises(InputError) as raised:
        remote.matching(pattern)
    assert raised.value.path == pattern


def test_a_path_is_fixed_to_where_it_is_now_and_a_url_is_already(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert remote.fixed(f"..{os.sep}run.memx") == f"{tmp_path}{os.sep}..{os.sep}run.memx"
    assert remote.fixed("s3://bucket/run.memx") == "s3://bucket/run.memx"


def test_who_may_write_and_not_look_writes_and_what_fails_then_removes_nothing(memory, monkeypatch, tmp_path):
    def refuse(*_arguments, **_options):
        raise PermissionError("Forbidden")

    (tmp_path / "file").write_bytes(b"new")
    monkeypatch.setattr(type(memory), "exists", refuse)
    remote.upload(tmp_path / "file", "memory://job/run-0.memx")
    assert memory.cat("/job/run-0.memx") == b"new"
    monkeypatch.setattr(type(memory), "put_file", refuse)
    with pytest.raises(OutputError, match="Forbidden"):
        remote.upload(tmp_path / "file", "memory://job/run-0.memx")
    assert memory.cat("/job/run-0.memx") == b"new"


def test_what_a_url_has_tells_whether_it_was_written(memory):
    before = remote.state("memory://job/run-0.memx")
    memory.pipe("/job/run-0.memx", b"longer")
    assert before != remote.state("memory://job/run-0.memx")
    assert remote.state("memory://job/none") is None
    assert remote.state("nonsense://x") is None
