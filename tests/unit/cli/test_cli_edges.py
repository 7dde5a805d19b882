"""What a new user stumbles over: typing errors, full disks, blanks in names, `-` where it may stand."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_cli_diff_check import ANSI, on_a_terminal

from memexport.cli import main

FULL = Path("/dev/full")


def test_a_command_that_is_nearly_right_is_named(memexport_cli):
    result = memexport_cli("sumary", "run.memx")
    assert result.exit_code == 2
    assert "No such command 'sumary'. Did you mean 'summary'?" in result.stderr
    assert "Did you mean" not in memexport_cli("xyzzy").stderr


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["--help"], ["summary", "--help"], ["--version"]])
def test_a_full_disk_behind_a_help_text_costs_a_sentence(arguments):
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "memexport", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (4, "memexport: stdout: No space left on device\n")


def test_a_folder_that_is_missing_is_named_with_the_command_that_makes_it(memexport_cli, recording):
    result = memexport_cli("convert", recording, "-o", "no/such/x.jsonl")
    assert result.exit_code == 4
    assert "mkdir -p no/such" in result.stderr


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["summary", "info", "check --max-peak 1TiB", "diff {0}", "query"])
def test_a_full_disk_behind_stdout_costs_a_sentence(recording, command):
    words = command.format(recording).split()
    extra = ["select 1"] if words[0] == "query" else []
    arguments = [words[0], str(recording), *words[1:], *extra]
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "memexport", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 4
    assert done.stderr.endswith("memexport: stdout: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("suffix", ["pftrace", "parquet", "html"])
def test_the_next_command_can_be_pasted_whatever_the_file_is_called(memexport_cli, recording, suffix):
    name = f"a b ü.{suffix}"
    said = memexport_cli("convert", recording, "-o", name).stderr
    assert f"Wrote {name} (" in said
    hint = said.split("). ", 1)[1]
    words = shlex.split(hint.partition(", or open it")[0].partition(": ")[2])
    assert name in words[-1]


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_doctor_has_colours_only_where_they_are_wanted(recording, environment):
    assert ANSI.search(on_a_terminal(80, "doctor", recording))
    assert not ANSI.search(on_a_terminal(80, "doctor", recording, **environment))


def test_sql_may_come_through_stdin(memexport_cli, recording):
    asked = ["query", str(recording), "--file", "-"]
    result = CliRunner().invoke(main, asked, input="select 40 + 2 as answer")
    assert (result.exit_code, result.stdout.split()) == (0, ["answer", "42"])
    assert memexport_cli("query", "-", "--file", "-").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "{}", "--max-peak", "1GiB", "--junit", "-"], "stdout has the answer"),
        (["check", "-", "--baseline", "-"], "stdin can be read once only"),
        (["diff", "{}", "{}", "-o", "-"], "stdout has the answer"),
    ],
    ids=["junit", "baseline", "picture"],
)
def test_where_there_can_be_no_stdin_or_stdout_it_is_said(memexport_cli, recording, arguments, said):
    result = memexport_cli(*(word.format(recording) for word in arguments))
    assert result.exit_code == 2
    assert said in result.stderr
    assert not Path("-").exists()


@pytest.mark.parametrize(
    "command", ["summary", "info", "check --max-peak 1TiB", "doctor", "convert -o ö.csv"]
)
def test_names_that_the_locale_cannot_say_are_read_and_written(recording, tmp_path, command):
    """An old container has none but C."""
    name = shutil.copy(recording, tmp_path / "a b ü.pickle")
    old = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "memexport", *command.split(), name],
        cwd=tmp_path,
        env={**os.environ, **old},
        capture_output=True,
        timeout=120,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
