"""A page carries its recording whole, small and harmless."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import itertools
import json
import re

import pytest
from timelines import HOSTILE, MIB, legacy, ranks, small, timeline_of

from memexport.plot import render_page
from memexport.plot.page_data import MOST_DEVICES, page_data


class Parsed(html.parser.HTMLParser):
    """What a browser makes of a page: its tags with their texts."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self._open = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag or tag in ("html", "body", "head")

    def handle_data(self, text):
        if self._open:
            self.texts.setdefault(self._open[-1], []).append(text)


def data_of(page):
    return json.loads(Parsed(page).texts["script"][0])


def sums(column):
    return list(itertools.accumulate(column))


def test_a_column_is_given_back_from_its_differences():
    timeline = small()
    (device,), read = timeline.devices, data_of(render_page(timeline))["devices"][0]
    assert sums(read["allocated"]) == device.samples["allocated_bytes"].tolist()
    assert max(sums(read["allocated"])) == 10 * MIB
    assert read["categories"] == ["parameter", "activation"]
    stacks = [sums(column) for column in read["stack"]]
    assert [sum(sizes) for sizes in zip(*stacks, strict=True)] == sums(read["allocated"])


def test_every_moment_adds_up():
    read = page_data(small())["devices"][0]
    for _, allocated, *_, others, unexplained, groups in (read["peak"], *read["moments"]):
        assert sum(groups[1::2]) + others + unexplained == allocated


def test_the_page_allows_only_its_own_script_and_style():
    page = Parsed(render_page(small()))
    (policy,) = (
        attributes["content"]
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    for content in (page.texts["script"][1], page.texts["style"][0]):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_the_page_refers_to_nothing_outside():
    page = render_page(small())
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|\beval\b|innerHTML|new Function", page)
    assert not any({"src", "href", "srcset"} & attributes.keys() for _, attributes in Parsed(page).tags)


def test_hostile_names_are_texts():
    plain = render_page(small())
    page = render_page(small(name=HOSTILE, module=HOSTILE, command_line=(HOSTILE,)), title=HOSTILE)
    assert [tag for tag, _ in Parsed(page).tags] == [tag for tag, _ in Parsed(plain).tags]
    names = data_of(page)["strings"]
    assert any(name.startswith("</script><script>") and "😀" in name for name in names)
    assert not any(set(name) & set("\n\x1b\u202e") for name in names)


def test_a_name_of_many_kilobytes_is_shortened():
    page = render_page(small(name="x" * 10_000, module="layer." * 3_000))
    assert all(len(name) < 400 for name in data_of(page)["strings"])


@pytest.mark.parametrize(("count", "most"), [(8, 8), (100, MOST_DEVICES)])
def test_of_many_devices_the_highest_are_shown_and_the_others_counted(count, most):
    page = render_page(ranks(count))
    read = data_of(page)
    assert len(read["devices"]) == most
    assert read["devices"][-1]["name"] == f"rank {count - 1} cuda:0"
    assert any(f"{count - most} devices" in note for note in read["notes"]) == (count > most)
    assert len(page) < 3_000_000


def test_without_a_clock_the_page_counts_events():
    read = page_data(legacy())
    assert (read["clock"], read["index"]) == ("index", 1_000)
    assert read["devices"][0]["peak"][0] == 25_000


def test_an_empty_recording_has_a_page():
    read = data_of(render_page(timeline_of([])))
    assert (read["devices"], read["title"]) == ([], "train.py")


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("python3 -u train.py --lr 1", "train.py"),
        ("python3 bin/memexport run -o a.memx jobs/train.py", "train.py"),
        ("python3 -m memexport run -m package.train -x", "package.train"),
        ("python3", "python3"),
        ("", "memexport"),
    ],
)
def test_a_page_is_called_what_was_run(command, title):
    read = data_of(render_page(timeline_of([], command_line=tuple(command.split()), producer="memexport")))
    assert read["title"] == title


@pytest.mark.parametrize(("theme", "said"), [("auto", None), ("light", "light"), ("dark", "dark")])
def test_the_page_opens_with_the_theme_that_was_asked_for(theme, said):
    (attributes,) = (a for tag, a in Parsed(render_page(small(), theme=theme)).tags if tag == "html")
    assert attributes.get("data-theme") == said


def test_bytes_beyond_what_a_browser_counts_are_lowered():
    huge = timeline_of([{"size": 2**62, "allocated": 2**62, "address": 1}])
    read = page_data(huge)["devices"][0]
    assert read["peak"][1] == max(sums(read["allocated"])) == 2**53 - 1
