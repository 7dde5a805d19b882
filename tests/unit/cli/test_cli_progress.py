"""The progress bar: only on a terminal, only for work that takes a while, and gone afterwards."""

from __future__ import annotations

import io
import types

import pytest

from memexport.cli import progress
from memexport.cli.progress import progress_bar


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        """Lie."""
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal on stderr."""
    stream = Terminal()
    # pytest puts a stream of its own into the real `sys` between the fixture and the test.
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
    return stream


def test_without_a_terminal_there_is_no_bar(monkeypatch):
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=io.StringIO()))
    with progress_bar("Reading") as callback:
        assert callback is None


def test_quick_work_shows_nothing(terminal):
    with progress_bar("Reading") as callback:
        callback(10, 0.5)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("fraction", [0.5, None])
def test_long_work_shows_what_it_does_and_how_far_it_is(terminal, monkeypatch, fraction):
    monkeypatch.setattr(progress, "PATIENCE_S", -1)
    with progress_bar("Reading") as callback:
        callback(10, fraction)
        callback(20, fraction)
    assert "Reading" in terminal.getvalue()


def test_a_name_cannot_steer_the_terminal_through_the_bar(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", -1)
    with progress_bar("Reading \x1b]0;title\x07[bold]x") as callback:
        callback(10, None)
    assert "\x1b]0;title" not in terminal.getvalue()
    assert "[bold]x" in terminal.getvalue()


def test_a_bar_counts_in_the_unit_of_the_work(terminal, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE_S", -1)
    with progress_bar("Fetching", "bytes") as callback:
        callback(4_096, 0.5)
    assert "4,096 bytes" in terminal.getvalue()
