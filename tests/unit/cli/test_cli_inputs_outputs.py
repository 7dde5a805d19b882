"""What INPUT and OUTPUT may be: several files, folders, `-`, URLs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner

from memexport.cli import main
from memexport.cli.outputs import default_output

LINES = 28
BAD = "not a recording"


@pytest.fixture
def recordings(recording, tmp_path):
    """Three files in the working directory; the second is none."""
    shutil.copy(recording, tmp_path / "last.pickle")
    (tmp_path / "bad.pickle").write_bytes(b"nonsense")
    return ["old.pickle", "bad.pickle", "last.pickle"]


@pytest.fixture
def memory(recording):
    """The filesystem behind memory:// URLs, with a recording in it."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pipe("/old.pickle", recording.read_bytes())
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def piped(recording, memexport_cli):
    """Call `memexport` with the recording on stdin."""
    return lambda *arguments: CliRunner().invoke(main, list(arguments), input=recording.read_bytes())


def lines(path):
    """How many lines the file has."""
    return len(Path(path).read_text().splitlines())


# ---- several


def test_several_inputs_are_each_converted_beside_themselves(memexport_cli, recording, tmp_path):
    (tmp_path / "sub").mkdir()
    shutil.copy(recording, tmp_path / "sub" / "other.pickle")
    result = memexport_cli("convert", "old.pickle", "sub/other.pickle", "--to", "jsonl")
    assert result.exit_code == 0
    assert [lines("old.jsonl"), lines("sub/other.jsonl")] == [LINES, LINES]
    assert result.stderr.count("Wrote ") == 2


@pytest.mark.parametrize("folder", ["out", "out/", "new/"])
def test_several_inputs_go_into_a_folder_which_is_made_where_a_slash_says_so(
    memexport_cli, recordings, tmp_path, folder
):
    (tmp_path / "out").mkdir()
    result = memexport_cli("convert", "old.pickle", "last.pickle", "-o", folder, "--to", "jsonl")
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / folder).iterdir()) == ["last.jsonl", "old.jsonl"]


def test_one_bad_file_does_not_keep_the_others_from_being_converted(memexport_cli, recordings):
    result = memexport_cli("convert", *recordings, "--to", "jsonl")
    assert result.exit_code == 3
    assert [lines("old.jsonl"), lines("last.jsonl")] == [LINES, LINES]
    assert not Path("bad.jsonl").exists()
    assert len([line for line in result.stderr.splitlines() if BAD in line]) == 1


def test_the_exit_code_is_that_of_the_first_failure(memexport_cli, recordings):
    Path("old.jsonl").write_text("precious")
    assert memexport_cli("convert", *recordings, "--to", "jsonl").exit_code == 4
    assert Path("old.jsonl").read_text() == "precious"
    assert lines("last.jsonl") == LINES


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["old.pickle", "last.pickle", "-o", "x.jsonl"], 2, "has no clock"),
        (["old.pickle", "last.pickle", "-o", "-", "--to", "jsonl"], 2, "has no clock"),
        (["old.pickle", "sub/old.pickle", "-o", "sub"], 2, "would both be written to"),
        (["old.pickle", "old.pickle"], 2, "would both be written to"),
        (["old.pickle", "old.memx", "--to", "archive", "--force"], 2, "is an INPUT itself"),
        (["old.pickle", "last.pickle", "-o", "missing/deeper/"], 4, "missing/deeper/: No such file"),
        (["old.pickle", "last.pickle", "-o", "bad.pickle/"], 4, "bad.pickle/: "),
        (["old.pickle", "last.pickle", "--to", "nonsense"], 2, "no output format"),
        (["old.pickle", "last.pickle", "--to", "jsonl", "--no-compress"], 2, "no option"),
        (["-", "-", "-o", "sub"], 2, "no name"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    memexport_cli, recordings, tmp_path, arguments, exit_code, message
):
    (tmp_path / "sub").mkdir()
    before = sorted(tmp_path.rglob("*"))
    result = memexport_cli("convert", *arguments)
    assert result.exit_code == exit_code
    assert message in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_as_input_says_what_to_name_instead(memexport_cli, recording, tmp_path):
    result = memexport_cli("convert", tmp_path, "-o", "x.jsonl")
    assert result.exit_code == 3
    assert "is a folder\nhint: name the files in it" in result.stderr


def test_a_summary_of_several_says_whose_each_is(memexport_cli, recordings):
    result = memexport_cli("summary", *recordings)
    assert result.exit_code == 3
    titles = [line for line in result.stdout.splitlines() if line.startswith("==>")]
    assert titles == ["==> old.pickle <==", "==> last.pickle <=="]
    assert result.stderr.count(BAD) == 1


@pytest.mark.parametrize("command", ["summary", "info"])
def test_json_of_several_is_an_array_of_what_one_is_with_its_path(memexport_cli, recordings, command):
    one = json.loads(memexport_cli(command, "old.pickle", "--json").stdout)
    result = memexport_cli(command, *recordings, "--json")
    assert json.loads(result.stdout) == [{"path": path, **one} for path in ("old.pickle", "last.pickle")]
    assert result.exit_code == 3


@pytest.mark.parametrize("command", ["summary", "info"])
def test_json_of_several_that_cannot_be_read_is_an_empty_array(memexport_cli, recordings, command):
    result = memexport_cli(command, "bad.pickle", "missing", "--json")
    assert (json.loads(result.stdout), result.exit_code) == ([], 3)


# ---- stdin and stdout


def test_a_dash_reads_stdin(piped):
    assert json.loads(piped("summary", "-", "--json").stdout)["operators"] == 26
    assert "torch.memory_tracker" in piped("info", "-").stdout
    assert piped("convert", "-", "-o", "x.jsonl").exit_code == 0
    assert lines("x.jsonl") == LINES


def test_a_dash_after_o_writes_stdout_and_only_what_was_asked_for(memexport_cli, recording):
    result = memexport_cli("convert", recording, "-o", "-", "--to", "jsonl")
    assert result.exit_code == 0
    assert [json.loads(line)["kind"] for line in result.stdout.splitlines()][:2] == ["marker", "operator"]
    assert len(result.stdout.splitlines()) == LINES
    assert "Wrote" not in result.stderr


def test_every_format_goes_through_a_pipe(piped, recording):
    for format_ in ("archive", "perfetto", "chrome", "jsonl"):
        assert piped("convert", "-", "-o", f"x.{format_}", "--to", format_).exit_code == 0
        through_pipe = piped("convert", "-", "-o", "-", "--to", format_).stdout_bytes
        assert through_pipe == Path(f"x.{format_}").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "-", "-o", "-"], "does not say which format"),
        (["convert", "-"], "has no name"),
        (["convert", "-", "-o", "."], "has no name"),
        (["summary", "-", "-"], "once only"),
    ],
)
def test_a_dash_that_leaves_something_open_is_wrong_usage(piped, arguments, message):
    result = piped(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_what_is_wrong_with_stdin_is_said_of_stdin():
    result = subprocess.run(
        [sys.executable, "-m", "memexport", "summary", "-"],
        input=b"nonsense",
        capture_output=True,
        check=False,
    )
    assert result.returncode == 3
    assert result.stderr.startswith(b"memexport: <stdin>: not a recording")


def test_a_terminal_gets_no_binary_format(memexport_cli, recording, monkeypatch):
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    refused = memexport_cli("convert", recording, "-o", "-", "--to", "perfetto")
    assert refused.exit_code == 2
    assert "binary" in refused.stderr
    assert memexport_cli("convert", recording, "-o", "-", "--to", "jsonl").exit_code == 0


@pytest.mark.parametrize("arguments", [["convert", "-o", "-", "--to", "jsonl"], ["summary"]])
def test_a_reader_that_has_gone_is_no_error_to_talk_about(recording, arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "memexport", *arguments, recording],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


# ---- URLs


def test_urls_are_read_and_written(memexport_cli, memory):
    result = memexport_cli("convert", "memory://old.pickle", "-o", "memory://a/new.jsonl")
    assert result.exit_code == 0
    assert "Wrote memory://a/new.jsonl. " in result.stderr
    assert len(memory.cat("/a/new.jsonl").splitlines()) == LINES
    again = memexport_cli("convert", "memory://old.pickle", "-o", "memory://a/new.jsonl")
    assert again.exit_code == 4
    assert "--force" in again.stderr
    assert memexport_cli("summary", "memory://old.pickle").exit_code == 0


def test_urls_go_to_the_working_directory_unless_told_otherwise(memexport_cli, memory, tmp_path):
    assert memexport_cli("convert", "memory://old.pickle", "--to", "jsonl").exit_code == 0
    assert lines(tmp_path / "old.jsonl") == LINES
    assert memexport_cli("convert", "old.pickle", "-o", "memory://folder/", "--to", "jsonl").exit_code == 0
    assert len(memory.cat("/folder/old.jsonl").splitlines()) == LINES


def test_a_url_that_leads_nowhere_exits_like_a_file_that_is_not_there(memexport_cli, memory, recording):
    assert memexport_cli("summary", "memory://missing").exit_code == 3
    assert memexport_cli("convert", recording, "-o", "nonsense://x.jsonl").exit_code == 4


def test_without_fsspec_a_url_is_wrong_usage_with_what_to_install(memexport_cli, recording, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    for arguments in (["summary", "s3://bucket/x"], ["convert", recording, "-o", "s3://bucket/x.jsonl"]):
        result = memexport_cli(*arguments)
        assert result.exit_code == 2
        assert "pip install 'memexport[remote]'" in result.stderr


# ---- names


@pytest.mark.parametrize(
    ("source", "to", "output"),
    [
        ("run.memx", "perfetto", "run.pftrace"),
        ("a/run.json.gz", "jsonl", "a/run.jsonl"),
        ("a.b/run", "archive", "a.b/run.memx"),
        ("run.v2", "chrome", "run.v2.json"),
        (".memx", "chrome", ".memx.json"),
    ],
)
def test_the_default_output_is_named_like_the_input(source, to, output):
    assert default_output(Path(source), to) == Path(output)
