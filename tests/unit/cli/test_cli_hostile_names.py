"""Whatever a recording's names are, they cannot steer, bury or crash the terminal that shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from memexport import pipeline
from memexport.model import (
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

ESCAPE, BELL, OVERRIDE = "\x1b", "\x07", "\u202e"
HOSTILE = f"a{ESCAPE}]0;owned{BELL}{ESCAPE}[2J\r\nb\u2028{OVERRIDE}gpj.exe\x9b31m\x00"
LONG = "x" * 10_000_000
UNPAIRED = "caf\udce9 \ud800"
ENCODINGS = ["ascii", "latin-1", "utf-8"]
MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """An archive in which everything that can have a name has a bad one."""
    path = tmp_path_factory.mktemp("hostile") / "run.memx"
    names = [HOSTILE, LONG, UNPAIRED]
    device = Device(HOSTILE, 0, HOSTILE, UNPAIRED)
    info = RecordingInfo(
        producer=HOSTILE,
        producer_version=UNPAIRED,
        host=LONG,
        torch_version=HOSTILE,
        devices=[device],
        command_line=(HOSTILE, LONG, UNPAIRED),
        options={HOSTILE: HOSTILE, UNPAIRED: LONG},
    )
    tables = Tables()
    ids = [tables.strings.intern(name) for name in names]
    stacks = [tables.stacks.intern([string_id] * 3) for string_id in ids]
    exporter = pipeline.exporter_to(path)
    exporter.begin(info, tables)
    for kind in EventKind:
        exporter.write(
            EventBatch(
                kind=[kind] * 3,
                time_unix_ns=[1, 2, 3],
                name=ids,
                module=ids,
                thread=ids,
                inputs=ids,
                stack=stacks,
                phase=Phase.FORWARD,
                category=Category.ACTIVATION,
                device=0,
                size_bytes=100,
                allocated_bytes=[100, 200, 300],
                address=[1, 2, 3] if kind == EventKind.ALLOCATION else 0,
            )
        )
    exporter.end(RecordingEnd(warnings=(HOSTILE, LONG, UNPAIRED)))
    return path


def run(encoding, *arguments, **options):
    """Run `memexport` on a terminal of this encoding, as far as Python knows."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    return subprocess.run(
        [sys.executable, "-m", "memexport", *arguments],
        capture_output=True,
        env=environment,
        check=False,
        timeout=120,
        **options,
    )


def assert_harmless(text, encoding):
    """Look for what a terminal would act on, and for floods."""
    assert len(text) < MOST_BYTES
    shown = text.decode(encoding)
    for character in shown.replace("\n", ""):
        assert character.isprintable(), repr(character)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "command", [["summary"], ["info"], ["summary", "--from", "2"], ["summary", "--markdown"]], ids="-".join
)
def test_a_report_shows_them_harmless_and_short(hostile, encoding, command):
    result = run(encoding, *command, hostile)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stderr == b""
    assert_harmless(result.stdout, encoding)
    assert rb"\x1b[2J" in result.stdout.replace(b"\n", b"")


@pytest.mark.parametrize("option", [[], ["--markdown"]], ids=["text", "markdown"])
def test_a_diff_shows_them_harmless_and_short(hostile, option):
    result = run("utf-8", "diff", hostile, hostile, *option)
    assert result.returncode == 0, result.stderr[-2000:]
    assert_harmless(result.stdout, "utf-8")


def test_a_check_shows_them_harmless_and_short(hostile, tmp_path):
    result = run("utf-8", "check", hostile, "--max-peak", "1", "--junit", tmp_path / "junit.xml")
    assert result.returncode == 1, result.stderr[-2000:]
    assert_harmless(result.stdout, "utf-8")
    assert_harmless((tmp_path / "junit.xml").read_bytes(), "utf-8")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("command", ["summary", "info"])
def test_json_keeps_them_whole_and_in_ascii(hostile, encoding, command):
    result = run(encoding, command, hostile, "--json")
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert ESCAPE not in result.stdout.decode()
    assert LONG in result.stdout.decode()
    json.loads(result.stdout)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("to", ["jsonl", "archive"])
def test_talk_shows_them_harmless_and_short(hostile, encoding, to, tmp_path):
    result = run(encoding, "convert", hostile, "--to", to, "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr[-2000:]
    assert_harmless(result.stderr, encoding)
    assert result.stderr.count(b"\n") == 4


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_error_shows_them_harmless_and_short(hostile, encoding):
    result = run(encoding, "summary", hostile, "--device", "cuda:0")
    assert result.returncode == 2
    assert_harmless(result.stderr, encoding)
    assert len(result.stderr.splitlines()) == 2


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bad_file_names_are_shown_harmless(hostile, encoding, tmp_path):
    named = os.fsencode(tmp_path) + f"/{ESCAPE}[2J{OVERRIDE}\n".encode() + b"\xe9\xff.memx"
    with open(named, "wb") as copy:  # noqa: PTH123 - a Path cannot be made of bytes
        copy.write(hostile.read_bytes())
    converted = run(encoding, "convert", named, "--to", "jsonl")
    assert converted.returncode == 0, converted.stderr[-2000:]
    assert_harmless(converted.stderr, encoding)
    several = run(encoding, "summary", named, named, b"missing\x1b[2J")
    assert several.returncode == 3
    assert_harmless(several.stdout, encoding)
    assert_harmless(several.stderr, encoding)


def test_a_locale_without_unicode_changes_nothing(hostile):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    result = subprocess.run(
        [sys.executable, "-m", "memexport", "summary", hostile],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert_harmless(result.stdout, "utf-8")
