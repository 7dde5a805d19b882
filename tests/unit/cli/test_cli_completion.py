"""Completion: what a shell is told, and real shells with the script that they are given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from memexport.cli import COMMANDS

HEAVY = ("torch", "numpy", "google.protobuf", "perfetto", "rich")


def ask(words, folder, shell="bash"):
    """What memexport answers when the shell asks about the last of the words: (type, value) each."""
    words = words.split(" ")
    code = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print([n for n in {HEAVY!r} if n in sys.modules], file=sys.stderr))\n"
        "from memexport.cli import main; main(prog_name='memexport')"
    )
    environment = {
        **os.environ,
        "_MEMEXPORT_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.splitlines()[-1] == "[]", "completing imports something heavy"
    return [tuple(line.split(",", 1)) for line in done.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path):
    """Files that are recordings by their names, and others."""
    for name in ("run.memx", "trace.pftrace", "old.pickle", "notes.txt", ".hidden.memx", "runs/a.memx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_commands_are_completed_without_importing_them(folder):
    assert ask("memexport ", folder) == [("plain", name) for name in COMMANDS]
    assert ask("memexport dem", folder) == [("plain", "demo")]


def test_options_are_completed(folder):
    assert ("plain", "--no-browser") in ask("memexport view --", folder)
    assert ask("memexport completion f", folder) == [("plain", "fish")]


def test_recordings_and_folders_are_completed_and_traces_where_they_are_read(folder):
    recordings = ["old.pickle", "run.memx", "runs/"]
    assert ask("memexport doctor ", folder) == [("plain", name) for name in recordings]
    assert ask("memexport view t", folder) == [("plain", "trace.pftrace")]
    assert ask("memexport view runs/", folder) == [("plain", "runs/a.memx")]
    assert ask("memexport view .h", folder) == [("plain", ".hidden.memx")]


def test_what_memexport_cannot_complete_well_is_left_to_the_shell(folder):
    (folder / "a b.memx").touch()
    assert ask("memexport view a", folder) == [("file", "a")]
    assert ask("memexport view notes", folder) == [("file", "notes")]
    assert ask("memexport view missing/", folder) == [("file", "missing/")]


@pytest.fixture
def script(memexport_cli, folder):
    """The script for a shell, and memexport on its path."""
    program = folder / "bin" / "memexport"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memexport "$@"\n')
    program.chmod(0o755)

    def make(shell):
        result = memexport_cli("completion", shell)
        assert result.exit_code == 0, result.stderr
        (folder / "script").write_text(result.stdout)
        return folder / "script"

    return make


def in_shell(command, folder):
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_with_the_script(script, folder):
    code = (
        f"source {script('bash')}\n"
        "COMP_WORDS=(memexport view t) COMP_CWORD=2\n"
        "_memexport_completion memexport t view\n"
        'echo "${COMPREPLY[@]}"'
    )
    assert in_shell(["bash", "-c", code], folder) == ["trace.pftrace"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_the_script(script, folder, shell):
    path = script(shell)
    assert "_MEMEXPORT_COMPLETE" in path.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    in_shell([shell, "-n", str(path)], folder)


def test_another_shell_is_wrong_usage(memexport_cli):
    assert memexport_cli("completion", "tcsh").exit_code == 2
