"""Pictures say what the devices held, in words that can be read."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from timelines import HOSTILE, MIB, legacy, ranks, small, timeline_of

from memexport.analysis.palette import CATEGORY_COLOURS, COUNTER_COLOURS, OUT_OF_MEMORY, THEMES
from memexport.errors import UsageError
from memexport.model import Category
from memexport.plot import Look, picture, render_png, render_svg


def texts(svg):
    found = (element for element in ET.fromstring(svg).iter() if element.tag.endswith("}text"))
    return ["".join(element.itertext()).strip() for element in found]


def size_of(png):
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


def test_an_svg_says_the_peak_its_operator_module_phase_and_step():
    said = texts(render_svg(small()))
    assert "Peak 10.00 MiB at 160.00 ms: aten::addmm in blocks.0.mlp, forward, step 1" in said
    assert {"train.py", "cuda:0", "step 0", "step 1", "10.00 MiB", "out of memory"} <= set(said)


def test_an_svg_names_categories_with_their_bytes_and_ticks_in_binary_units():
    said = texts(render_svg(small()))
    for text in (
        "parameter",
        "activation",
        "reserved",
        "4.00 MiB",
        "6.00 MiB",
        "16.00 MiB",
        "8 MiB",
        "50 ms",
    ):
        assert text in said


def test_a_picture_is_painted_with_the_palette():
    svg = render_svg(small())
    assert {CATEGORY_COLOURS[Category.PARAMETER], CATEGORY_COLOURS[Category.ACTIVATION]} <= {
        colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}", svg)
    }
    assert COUNTER_COLOURS["reserved"] in svg
    assert OUT_OF_MEMORY in svg


@pytest.mark.parametrize("theme", THEMES)
def test_a_theme_is_its_background(theme):
    assert THEMES[theme].surface in render_svg(small(), Look(theme=theme))


def test_a_png_has_the_size_that_was_asked_for():
    assert size_of(render_png(small())) == (1200, 600)
    assert size_of(render_png(small(), Look(width=640, height=480))) == (640, 480)


def test_the_same_timeline_gives_the_same_picture():
    assert render_svg(small()) == render_svg(small())
    assert render_png(small()) == render_png(small())


def test_every_device_has_a_panel_and_those_without_one_are_counted():
    said = texts(render_svg(ranks(11)))
    assert [text for text in said if text.startswith("rank ")] == [f"rank {n} cuda:0" for n in range(3, 11)]
    assert any("3 devices with lower peaks are not shown" in text for text in said)


def test_without_a_clock_a_picture_counts_events():
    said = texts(render_svg(legacy()))
    assert "event" in said
    assert "Peak 901.59 KiB at event 25: aten::threshold_backward, backward" in said
    assert not any(text.endswith(" ms") for text in said)


def test_hostile_names_are_texts_in_a_picture():
    said = texts(render_svg(small(name=HOSTILE, module="$$" + HOSTILE), Look(title=HOSTILE)))
    assert any("<script>" in text for text in said)
    assert render_png(small(name=HOSTILE, module="\\frac{" + HOSTILE), Look(title="$\\bad$"))


@pytest.mark.parametrize(
    "rows",
    [[], [{"size": 1, "allocated": 1, "address": 1}], [{"allocated": 0}]],
    ids=["empty", "one event", "nothing allocated"],
)
def test_there_is_a_picture_of_little(rows):
    timeline = timeline_of(rows)
    assert size_of(render_png(timeline)) == (1200, 600)
    assert texts(render_svg(timeline))


def test_a_million_bytes_more_than_the_peak_are_not_drawn():
    """The axis ends a little above what there is to see."""
    said = texts(render_svg(timeline_of([{"size": 3 * MIB, "allocated": 3 * MIB, "address": 1}])))
    assert [text for text in said if text.endswith(" MiB") and "." not in text] == ["1 MiB", "2 MiB", "3 MiB"]


def test_drawing_leaves_pyplot_alone():
    code = (
        "import sys; sys.path.insert(0, 'tests'); from timelines import small\n"
        "from memexport.plot import render_png; import memexport.plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "render_png(small()); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="matplotlib") as raised:
        render_png(small())
    assert "memexport[plot]" in raised.value.hint
