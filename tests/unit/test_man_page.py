"""The manual page says what the commands say."""

from __future__ import annotations

import re
import shutil
import subprocess

import man_page
import pytest

from memexport.cli import COMMANDS


def test_the_page_is_current():
    assert man_page.PAGE.read_text(encoding="utf-8") == man_page.rendered(), "run python tools/man_page.py"


def test_every_command_has_a_section_with_its_options():
    page = man_page.rendered()
    for name in COMMANDS:
        assert f"\n.SS {name} " in page
    assert r"\-\-no\-browser" in page


def test_a_check_fails_before_it_is_written_and_passes_after(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(man_page, "PAGE", tmp_path / "man" / "memexport.1")
    assert man_page.run(["--check"]) == 1
    assert "tools/man_page.py" in capsys.readouterr().err
    assert man_page.run([]) == 0
    assert man_page.run(["--check"]) == 0


@pytest.mark.parametrize(
    ("text", "roff"),
    [(".dot", r"\&.dot"), ("'quote", r"\&'quote"), (r"a\b", r"a\eb"), ("--json", r"\-\-json"), ("é", "é")],
)
def test_text_cannot_become_a_command_of_roff(text, roff):
    assert man_page.escaped(text) == roff


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_formats_it_without_a_warning():
    command = ["groff", "-man", "-ww", "-Kutf8", "-Tutf8"]
    done = subprocess.run(command, input=man_page.rendered().encode(), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    # Bold is a character, a backspace and the character again.
    shown = re.sub(r".\x08", "", done.stdout.decode())
    assert "--no-browser" in shown
