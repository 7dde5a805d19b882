"""`memexport push`: what it refuses, what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from memexport.cli import main
from memexport.cli.push import Duration
from memexport.exporters import _otlp_send as sending
from memexport.exporters._otlp_send import Answer

DATA = Path(__file__).parents[2] / "data"
ARCHIVE = DATA / "archives" / "1.0.memx"
LEGACY = DATA / "legacy_conv.pickle"  # it has no clock


class Collector:
    """Takes everything, and has something to say."""

    target = "http://collector/v1/metrics"
    requests = 0

    def send(self, _):
        self.requests += 1
        return Answer(True, 0, "welcome")

    def close(self):
        pass


@pytest.fixture
def collector(monkeypatch):
    made = Collector()
    monkeypatch.setattr(sending, "sender_to", lambda *_: made)
    return made


def push(*arguments):
    return CliRunner().invoke(main, ["push", *map(str, arguments)])


@pytest.mark.parametrize(
    ("text", "nanoseconds"), [("100ms", 10**8), ("2.5s", 2_500_000_000), ("1min", 60 * 10**9), ("7ns", 7)]
)
def test_a_length_of_time(text, nanoseconds):
    assert Duration().convert(text, None, None) == nanoseconds


@pytest.mark.parametrize(
    "options",
    [
        ["--interval", "100"],
        ["--interval", "0s"],
        ["--interval", "soon"],
        ["--interval", "2026-01-01"],
        ["--protocol", "carrier-pigeon"],
        ["--top-modules", "1000"],
        ["--module-depth", "0"],
        ["--from", "#100"],
        ["--from", "yesterday"],
    ],
)
def test_wrong_usage_is_said_before_anything_is_read(options):
    done = push("missing.memx", *options)
    assert done.exit_code == 2
    assert "missing.memx" not in done.output


def test_an_address_that_is_none_is_wrong_usage():
    done = push(ARCHIVE, "--endpoint", "localhost:4318")
    assert done.exit_code == 2
    assert "http://localhost:4318" in done.output


def test_it_says_what_was_sent_where_and_what_the_collector_said(collector):
    done = push(ARCHIVE, "--interval", "1ms")
    assert done.exit_code == 0, done.output
    first, second = done.output.splitlines()[-2:]  # after what the recording warns of
    assert first.startswith(f"Pushed {ARCHIVE}: ")
    assert first.endswith(" accepted, 0 rejected, in 1 requests.")
    assert "points sent to http://collector/v1/metrics" in first
    assert second == "memexport: the collector says: welcome"


def test_a_recording_without_a_clock_is_refused_with_a_hint(collector):
    done = push(LEGACY)
    assert done.exit_code == 2
    assert "no clock" in done.output and "hint:" in done.output
    assert collector.requests == 0


def test_of_several_recordings_each_is_sent(collector):
    done = push(LEGACY, ARCHIVE)
    assert done.exit_code == 2
    assert collector.requests == 1
