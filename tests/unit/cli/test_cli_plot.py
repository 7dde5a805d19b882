"""`memexport plot`: pages and pictures from the command line."""

from __future__ import annotations

import shutil

import pytest

from memexport import pipeline
from memexport.plot import picture


def test_a_page_is_written_beside_the_input_by_default(memexport_cli, recording):
    result = memexport_cli("plot", recording)
    assert result.exit_code == 0, result.stderr
    page = recording.with_suffix(".html")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "<title>old.pickle</title>" in page.read_text(encoding="utf-8")
    assert f"Wrote {page}" in result.stderr
    assert "Open it in a browser" in result.stderr


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype")]
)
def test_the_suffix_says_what_to_write(memexport_cli, recording, tmp_path, name, start):
    assert memexport_cli("plot", recording, "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(start)


def test_an_output_is_replaced_only_by_force(memexport_cli, recording):
    assert memexport_cli("plot", recording).exit_code == 0
    refused = memexport_cli("plot", recording)
    assert (refused.exit_code, "--force" in refused.stderr) == (4, True)
    assert memexport_cli("plot", recording, "--force").exit_code == 0


def test_size_and_theme_are_those_that_were_asked_for(memexport_cli, recording, tmp_path):
    out = tmp_path / "a.svg"
    result = memexport_cli("plot", recording, "-o", out, "--theme", "dark", "--width", 800, "--height", 400)
    assert result.exit_code == 0, result.stderr
    assert 'viewBox="0 0 576 288"' in out.read_text(encoding="utf-8")  # points: 72 to an inch of 100 pixels
    assert "#14171c" in out.read_text(encoding="utf-8")


def test_a_range_and_stdout_are_options_as_they_are_of_convert(memexport_cli, recording):
    result = memexport_cli("plot", recording, "--until", 10, "--to", "svg", "-o", "-")
    assert result.exit_code == 0, result.stderr
    assert "</svg>" in result.stdout
    assert "10 events" in result.stdout


def test_several_inputs_have_a_page_each(memexport_cli, recording, tmp_path):
    other = shutil.copy(recording, tmp_path / "other.pickle")
    assert memexport_cli("plot", recording, other).exit_code == 0
    assert (
        memexport_cli("plot", recording, other, "--to", "svg", "-o", f"{tmp_path}/pictures/").exit_code == 0
    )
    assert {path.name for path in tmp_path.rglob("*.html")} == {"old.html", "other.html"}
    assert {path.name for path in tmp_path.rglob("*.svg")} == {"old.svg", "other.svg"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-o", "a.pftrace"), "is no picture"),
        (("-o", "a.html", "--width", 800), "for pictures"),
        (("-o", "a.xyz"), "does not say"),
        (("--to", "pdf"), "pdf"),
        (("--width", 5), "5"),
    ],
    ids=["another format", "width of a page", "unknown suffix", "unknown format", "too narrow"],
)  # fmt: skip
def test_wrong_usage_is_said_before_anything_is_read(memexport_cli, options, said):
    result = memexport_cli("plot", "missing.memx", *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_matplotlib_a_page_is_offered(memexport_cli, recording, monkeypatch):
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    result = memexport_cli("plot", recording, "-o", "a.png")
    assert result.exit_code == 2
    assert "memexport[plot]" in result.stderr
    assert ".html" in result.stderr
    assert memexport_cli("plot", recording).exit_code == 0


def test_convert_writes_the_same_page(memexport_cli, recording, tmp_path):
    assert memexport_cli("convert", recording, "-o", tmp_path / "a.html").exit_code == 0
    pipeline.convert(recording, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
