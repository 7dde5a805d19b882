"""What a notebook shows of summaries and recordings."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import memexport
from memexport.analysis.palette import CATEGORY_COLOURS
from memexport.analysis.text import human_bytes
from memexport.model import Category
from memexport.plot import render_page

DATA = Path(__file__).parents[2] / "data"
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\x1b[2J\u202e&amp;'


class Parsed(HTMLParser):
    """The tags that a fragment opens, its text, and the rows of its tables."""

    def __init__(self, fragment):
        super().__init__()
        self.tags, self.open, self.rows, self.text = set(), [], [], ""
        self.attributes = ""
        self.feed(fragment)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        self.attributes += "".join(f" {name}={value}" for name, value in attrs)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "tr" in self.open:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def summary():
    with memexport.open(DATA / "legacy_conv.pickle") as recording:
        return recording.summary()


@pytest.fixture(scope="module")
def trained():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    with memexport.Tracker(model) as tracker:
        for _ in range(4):
            model(torch.randn(32, 64)).sum().backward()
            tracker.step()
    return tracker.summary()


def test_a_summary_has_the_figures_of_the_report(trained):
    shown = Parsed(trained._repr_html_())
    device = trained.devices["cpu"]
    values = (device.allocated.start, device.allocated.peak, device.allocated.end)
    assert ["cpu", "allocated", *map(human_bytes, values)] in shown.rows
    largest, size = next(iter(device.categories_at_peak.items()))
    share = f"{size / device.allocated.peak:.1%}"
    assert [largest, human_bytes(size), share, ""] in shown.rows
    assert any(row[0] == "0" or row[0] == "2" for row in shown.rows)  # the modules
    assert f"cpu peaked at {human_bytes(device.allocated.peak)}" in shown.text


def test_categories_have_the_colours_that_they_have_everywhere(trained):
    fragment = trained._repr_html_()
    for name in ("parameter", "gradient"):
        assert CATEGORY_COLOURS[Category[name.upper()]] in fragment


@pytest.mark.parametrize("kind", ["summary", "recording"])
def test_names_from_a_file_stay_text(kind, summary):
    if kind == "summary":
        operators = tuple(replace(row, operator=HOSTILE, module=HOSTILE) for row in summary.top_operators)
        device = next(iter(summary.devices.values()))
        devices = {HOSTILE: replace(device, peak_operator=HOSTILE, peak_module=HOSTILE)}
        growth = dict.fromkeys(devices)
        hostile = replace(
            summary, top_operators=operators, devices=devices, growth=growth, warnings=(HOSTILE,)
        )
        fragment = hostile._repr_html_()
    else:
        with memexport.open(DATA / "legacy_conv.pickle") as recording:
            recording.name = HOSTILE
            recording.info = replace(recording.info, host=HOSTILE, command_line=(HOSTILE,))
            fragment = recording._repr_html_()
    shown = Parsed(fragment)
    assert shown.tags <= {"div", "p", "strong", "table", "tr", "th", "td", "code", "ol", "li"}
    assert "<script>alert(1)</script>" in shown.text
    assert "onerror" not in shown.attributes
    assert "\x1b" not in fragment
    assert "\u202e" not in fragment


@pytest.mark.parametrize("kind", ["summary", "recording"])
def test_nothing_is_loaded_and_no_colour_of_the_text_is_set(kind, trained):
    with memexport.open(DATA / "legacy_conv.pickle") as recording:
        fragment = trained._repr_html_() if kind == "summary" else recording._repr_html_()
    for what in ("http", "url(", "<link", "<style", "class=", "src="):
        assert what not in fragment
    assert fragment.count(";color:") + fragment.count('"color:') == fragment.count("color:inherit")


def test_a_recording_says_what_it_is_without_being_read(monkeypatch):
    with memexport.open(DATA / "legacy_conv.pickle") as recording:
        monkeypatch.setattr(recording, "batches", lambda: pytest.fail("it was read"))
        shown = Parsed(recording._repr_html_())
    assert ["format", "torch.memory_tracker"] in shown.rows
    assert "legacy_conv.pickle" in shown.text


def test_an_empty_summary_is_shown(summary):
    empty = replace(summary, devices={}, top_operators=(), growth={}, advice=(), warnings=())
    assert "events" in Parsed(empty._repr_html_()).text


def test_a_recording_is_plotted_inline_in_a_frame_that_can_reach_nothing():
    with memexport.open(DATA / "legacy_conv.pickle") as recording:
        plot, page = recording.plot(height=500), render_page(recording.timeline())
    (frame,) = Frames(plot._repr_html_()).found
    assert frame["srcdoc"] == page
    assert frame["sandbox"] == "allow-scripts"
    assert "height:500px" in frame["style"]
    assert len(repr(plot)) < 100


class Frames(HTMLParser):
    """The attributes of the frames in a fragment; it may have nothing else."""

    def __init__(self, fragment):
        super().__init__()
        self.found = []
        self.feed(fragment)

    def handle_starttag(self, tag, attrs):
        assert tag == "iframe"
        self.found.append(dict(attrs))
