"""Completion as people have it: lines typed into real shells, with Tab."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

# What is typed before Tab, and what stands there after it: a blank at the end where the word is over.
TYPED = {
    "memexport su": "memexport summary ",
    "memexport summary --mar": "memexport summary --markdown ",
    "memexport view t": "memexport view trace.pftrace ",
    "memexport view ru": "memexport view run",
    "memexport view runs": "memexport view runs/",
    "memexport view runs/": "memexport view runs/a.memx ",
    "memexport view ~/runs/": "memexport view ~/runs/a.memx ",
    "memexport view no": "memexport view notes.txt ",
    "memexport summary run.memx ol": "memexport summary run.memx old.pickle ",
    "memexport check --baseline=ol": "memexport check --baseline=old.pickle ",
    "memexport check --junit=no": "memexport check --junit=notes.txt ",
    "memexport convert run.memx -o no": "memexport convert run.memx -o notes.txt ",
    "memexport convert run.memx --to pe": "memexport convert run.memx --to perfetto ",
    "memexport run --capture=al": "memexport run --capture=allocator ",
    "memexport run no": "memexport run notes.txt ",
}
# Ctrl-X writes the line down. "ready" is there when the shell listens.
SETUP = {
    "zsh": """
fpath=($PWD $fpath)
autoload -Uz compinit && compinit -u -d compinit-dump
show() { print -r -- "[$BUFFER]" >> typed }
zle-line-init() { : > ready }
zle -N show && zle -N zle-line-init
bindkey '^X' show
""",
    "bash": """
source ./script
show() { printf '[%s]\\n' "$READLINE_LINE" >> typed; }
bind -x '"\\C-x": show'
PROMPT_COMMAND=': > ready'
""",
}
COMMANDS = {"zsh": ["zsh", "-d", "-i"], "bash": ["bash", "--rcfile", ".zshrc", "-i"]}
SECONDS = 60


@pytest.fixture
def folder(memexport_cli, tmp_path):
    """A home with recordings, other files, and memexport on the path."""
    for name in ("run.memx", "trace.pftrace", "old.pickle", "notes.txt", "runs/a.memx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    program = tmp_path / ".bin" / "memexport"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memexport "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(folder):
    return {
        "PATH": f"{folder / '.bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "ZDOTDIR": str(folder),
        "TERM": "dumb",
        "INPUTRC": os.devnull,
        "LANG": "C.UTF-8",
    }


def need(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_what_is_typed(memexport_cli, folder, shell):
    need(shell)
    script = memexport_cli("completion", shell).stdout
    (folder / {"bash": "script", "zsh": "_memexport"}[shell]).write_text(script)
    (folder / ".zshrc").write_text(SETUP[shell])
    assert dict(zip(TYPED, typed(shell, folder), strict=True)) == TYPED


def test_fish_completes_what_is_typed(memexport_cli, folder):
    """It shows what it would put in the place of the last word, with a description."""
    need("fish")
    (folder / "script").write_text(memexport_cli("completion", "fish").stdout)
    found = {line: in_fish(line, folder) for line in TYPED}
    words = {line: [answer.partition("\t")[0] for answer in answers] for line, answers in found.items()}
    expected = {line: [after.split(" ")[-2 if after.endswith(" ") else -1]] for line, after in TYPED.items()}
    assert words == {**expected, "memexport view ru": ["run.memx", "runs/"]}
    (about,) = found["memexport summary --mar"]
    assert about == "--markdown\tPrint GitHub Markdown, for an issue or a pull request."


def in_fish(line, folder):
    code = f"source ./script; complete -C '{line}'"
    command = ["fish", "--no-config", "-c", code]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def typed(shell, folder):
    """The lines after Tab, in order."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        COMMANDS[shell],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        cwd=folder,
        env=environment(folder),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        wait_for(ours, lambda: (folder / "ready").exists())
        for count, line in enumerate(TYPED, 1):
            # Ctrl-U empties the line.
            os.write(ours, f"\x15{line}\t\x18".encode())
            wait_for(ours, lambda count=count: len(written(folder)) == count)
        return written(folder)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def written(folder: Path):
    path = folder / "typed"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line[1:-1] for line in lines]


def wait_for(terminal, is_there):
    """A shell that nobody reads from waits."""
    until = time.monotonic() + SECONDS
    while not is_there():
        assert time.monotonic() < until, "the shell does not answer"
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 65_536)
