"""The command line as a whole: light, polite, with exit codes that scripts can rely on."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from memexport.cli import COMMANDS, main
from memexport.errors import InputError, OutputError, UsageError

HEAVY = ("torch", "numpy", "google.protobuf", "perfetto", "opentelemetry", "zstandard", "rich")


def python(*arguments):
    """Run this Python in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def test_help_imports_nothing_heavy():
    code = (
        "import sys, memexport.cli\n"
        "try: memexport.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = python("-c", code)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_python_minus_m_memexport_is_memexport():
    result = python("-m", "memexport", "--version")
    assert (result.returncode, result.stdout.split()[0]) == (0, "memexport,"), result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_its_first_line_of_help_is_a_sentence(memexport_cli, name):
    result = memexport_cli(name, "--help")
    assert result.exit_code == 0
    assert COMMANDS[name].help.endswith(".")
    assert main.get_command(click.Context(main), name).name == name


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["convert"], ["summary"], ["run"], ["summary", "--nonsense"], ["formats", "x"]],
)
def test_wrong_usage_exits_with_2(memexport_cli, arguments):
    assert memexport_cli(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (UsageError("no"), 2),
        (InputError("f", None, "no"), 3),
        (OutputError("f", None, "no"), 4),
        (KeyboardInterrupt(), 130),
    ],
    ids=["usage", "input", "output", "interrupt"],
)
def test_an_error_becomes_its_exit_code_and_no_traceback(memexport_cli, monkeypatch, error, exit_code):
    def fail(*_arguments, **_options):
        raise error

    monkeypatch.setattr("memexport.pipeline.open", fail)
    result = memexport_cli("summary", "file")
    assert result.exit_code == exit_code
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_an_error_is_one_line_with_its_hint_on_the_next(memexport_cli, recording):
    result = memexport_cli("convert", recording, "-o", "x.nonsense")
    lines = result.stderr.splitlines()
    assert lines[0].startswith("memexport: the name 'x.nonsense'")
    assert lines[1].startswith("hint: formats: ")
    assert len(lines) == 2


def test_a_name_with_an_escape_sequence_cannot_steer_the_terminal(memexport_cli, tmp_path):
    result = memexport_cli("summary", tmp_path / "\x1b[2Jgone\nnext")
    assert result.exit_code == 3
    assert "\x1b" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_output_survives_a_terminal_that_cannot_show_every_character(recording):
    import os

    result = subprocess.run(
        [sys.executable, "-m", "memexport", "summary", recording],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
