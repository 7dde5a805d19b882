"""The page that `memexport plot` writes works in a real browser, offline."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from bench.synthetic import synthetic_batches
from perfetto_ui import CHROMIUM_OPTIONS, find_chromium
from timelines import HOSTILE, MIB, legacy, ranks, small, timeline_of

from memexport.analysis.palette import CATEGORY_COLOURS
from memexport.analysis.timeline_fold import TimelineFold
from memexport.model import Category, RecordingEnd
from memexport.plot import render_page

pytestmark = [pytest.mark.ui, pytest.mark.skipif(find_chromium() is None, reason="needs chromium")]

# The chart's margins, in pixels: see 2_chart.js.
LEFT, RIGHT = 62, 10


class Reader:
    """Somebody who reads a page.

    Attributes:
        trouble: errors of the page, whatever it prints, and requests for anything but itself.
    """

    def __init__(self, page, path):
        self.page = page
        self.trouble = []
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        # The tests read pixels more often than a browser expects.
        page.on("console", lambda m: "willReadFrequently" in m.text or self.trouble.append(m.text))
        page.on("request", lambda request: self.trouble.append(request.url))
        page.goto(path.as_uri())
        self.trouble.remove(path.as_uri())
        self.settle()

    def settle(self):
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def place(self, fraction):
        """Where on the screen this part of the time on view is."""
        box = self.page.locator("#chart").bounding_box()
        return box["x"] + LEFT + fraction * (box["width"] - LEFT - RIGHT), box["y"] + box["height"] / 2

    def hover(self, fraction):
        self.page.mouse.move(*self.place(fraction))
        self.settle()

    def click(self, fraction):
        self.page.mouse.click(*self.place(fraction))
        self.settle()

    def drag(self, begin, end):
        self.page.mouse.move(*self.place(begin))
        self.page.mouse.down()
        self.page.mouse.move(*self.place(end), steps=4)
        self.page.mouse.up()
        self.settle()

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def pixel(self, fraction, height):
        """The colour there on the chart; `height` from its top, 0 to 1."""
        return self.page.evaluate(
            """([x, y, left, right]) => {
              const canvas = document.getElementById('chart'), ratio = devicePixelRatio;
              const at = [left + x * (canvas.clientWidth - left - right), y * canvas.clientHeight];
              const [across, down] = at.map(place => Math.round(place * ratio));
              const [r, g, b, opacity] = canvas.getContext('2d').getImageData(across, down, 1, 1).data;
              if (!opacity) return 'nothing';
              return '#' + [r, g, b].map(v => v.toString(16).padStart(2, '0')).join('');
            }""",
            [fraction, height, LEFT, RIGHT],
        )


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        yield started
        started.close()


@pytest.fixture
def read(browser, tmp_path):
    """Opens the page of a timeline; whatever is not its own is out of reach."""
    with contextlib.ExitStack() as stack:

        def open_page(timeline, *, width=1400, height=900, scheme="light", **options):
            path = tmp_path / "page.html"
            path.write_text(render_page(timeline, **options), encoding="utf-8")
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
            )
            stack.callback(context.close)
            readers.append(Reader(context.new_page(), path))
            return readers[-1]

        readers = []
        yield open_page
        assert [reader.trouble for reader in readers] == [[] for _ in readers]


def test_the_page_opens_at_the_peak(read):
    reader = read(small())
    assert reader.text("h1") == "train.py"
    figures = reader.text("#figures")
    for said in ("10.00 MiB", "160.0 ms · step 1 · forward", "aten::addmm", "blocks.0.mlp", "16.00 MiB"):
        assert said in figures
    assert reader.text("#at") == "At the peak"
    rows = reader.page.locator("#live li").all_inner_texts()
    assert [row.split("\n") for row in rows] == [
        ["blocks.0.mlpactivation", "6.00 MiB", "60 %"],
        ["headparameter", "4.00 MiB", "40 %"],
    ]


def test_the_chart_stacks_the_categories_in_their_colours(read):
    reader = read(small())
    assert reader.pixel(0.99, 0.86) == CATEGORY_COLOURS[Category.PARAMETER]
    assert reader.pixel(0.9, 0.6) == CATEGORY_COLOURS[Category.ACTIVATION]
    assert reader.pixel(0.2, 0.6) == "nothing"


def test_the_pointer_reads_out_time_step_bytes_operator_and_module(read):
    reader = read(small())
    reader.hover(0.9)
    tip = reader.text("#tip")
    for said in ("10.00 MiB", "step 1", "forward", "aten::addmm", "blocks.0.mlp"):
        assert said in tip
    legend = reader.text("#legend")
    assert "6.00 MiB" in legend
    assert reader.text("#at").startswith("At 17")
    reader.hover(0.2)
    assert "4.00 MiB" in reader.text("#tip")
    assert "0 B" in reader.text("#legend")
    reader.page.mouse.move(0, 0)
    reader.settle()
    assert (reader.page.locator("#tip").is_visible(), reader.text("#at")) == (False, "At the peak")


def test_a_click_shows_what_was_live_then_and_the_way_back(read):
    reader = read(small())
    reader.click(0.4)
    assert reader.text("#live-title").startswith("Live at 60")
    assert reader.page.locator("#live li").all_inner_texts()[0].split("\n")[1] == "5.00 MiB"
    reader.click(0.2)
    assert reader.page.locator("#live li").count() == 1
    reader.page.locator("#to-peak").click()
    assert reader.text("#live-title") == "Live at the peak"


def test_a_drag_zooms_and_a_button_shows_all_again(read):
    reader = read(small())
    assert not reader.page.locator("#reset").is_visible()
    reader.drag(0.8, 0.95)
    reader.hover(0.5)
    assert "step 1" in reader.text("#tip")
    assert reader.pixel(0.6, 0.5) == CATEGORY_COLOURS[Category.ACTIVATION]
    reader.page.locator("#reset").click()
    reader.hover(0.1)
    assert "step 0" in reader.text("#tip")


def test_the_legend_hides_and_shows_a_category(read):
    reader = read(small())
    button = reader.page.locator("#legend button", has_text="activation")
    button.click()
    reader.settle()
    assert button.get_attribute("aria-pressed") == "false"
    assert reader.pixel(0.9, 0.6) != CATEGORY_COLOURS[Category.ACTIVATION]
    button.click()
    reader.settle()
    assert reader.pixel(0.9, 0.6) == CATEGORY_COLOURS[Category.ACTIVATION]


def test_the_treemap_goes_into_a_module_and_back(read):
    modules = ["transformer.layers.0.mlp", "transformer.layers.0.attention", "transformer.layers.1", "head"]
    rows = [
        {"at": at, "size": size * MIB, "module": module, "address": at + 1, "category": Category.ACTIVATION}
        for at, (module, size) in enumerate(zip(modules, (5, 3, 4, 2), strict=True))
    ]
    reader = read(timeline_of(rows))
    boxes = reader.page.locator("#tree .box")
    assert {label.split("\n")[0] for label in boxes.all_inner_texts()} >= {"transformer12.00 MiB"}
    reader.page.locator("#tree button.box", has_text="transformer").click()
    assert [text.split("MiB")[0] for text in sorted(boxes.all_inner_texts())] == [
        "layers.08.00 ",
        "layers.14.00 ",
    ]
    assert reader.text("#crumbs").split("›")[-1].strip() == "transformer"
    reader.page.locator("#crumbs button").first.click()
    assert boxes.count() == 2


def test_the_keyboard_moves_pins_and_zooms(read):
    reader = read(small())
    reader.page.locator("#chart").focus()
    for _ in range(12):
        reader.page.keyboard.press("Shift+ArrowLeft")
    reader.settle()
    assert reader.page.locator("#tip").is_visible()
    assert "step" in reader.page.locator("#read-out").inner_text()
    reader.page.keyboard.press("Enter")
    assert reader.text("#live-title") != "Live at the peak"
    reader.page.keyboard.press("+")
    assert reader.page.locator("#reset").is_visible()
    reader.page.keyboard.press("Escape")
    assert not reader.page.locator("#reset").is_visible()
    assert reader.text("#live-title") == "Live at the peak"


@pytest.mark.parametrize(
    ("scheme", "background"), [("light", "rgb(245, 246, 248)"), ("dark", "rgb(12, 14, 18)")]
)
def test_the_page_is_as_the_system_is_and_as_the_reader_wants(read, scheme, background):
    reader = read(small(), scheme=scheme)
    shown = "() => getComputedStyle(document.body).backgroundColor"
    assert reader.page.evaluate(shown) == background
    drawn = "() => document.getElementById('chart').toDataURL()"
    before = reader.page.evaluate(drawn)
    reader.page.locator("#theme").click()
    reader.settle()
    assert reader.page.evaluate(shown) != background
    assert reader.page.evaluate(drawn) != before


@pytest.mark.parametrize("width", [600, 700, 1400])
def test_nothing_is_wider_than_the_window(read, width):
    reader = read(small(name=HOSTILE, module="layer." * 200), width=width)
    assert reader.page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_hostile_names_are_shown_and_do_nothing(read):
    reader = read(small(name=HOSTILE, module=HOSTILE, command_line=(HOSTILE,)), title=HOSTILE)
    reader.hover(0.9)
    reader.click(0.9)
    assert "<script>" in reader.text("#tip")
    assert reader.page.title().startswith("</script>")
    assert reader.page.evaluate("() => document.images.length") == 0


def test_a_device_is_chosen_by_its_button(read):
    reader = read(ranks(3))
    assert reader.page.locator("#devices button").all_inner_texts() == [
        "rank 0 cuda:0\n1.00 MiB", "rank 1 cuda:0\n2.00 MiB", "rank 2 cuda:0\n3.00 MiB",
    ]  # fmt: skip
    reader.page.locator("#devices button").nth(2).click()
    assert "3.00 MiB" in reader.text("#figures")


def test_without_a_clock_the_page_speaks_of_events(read):
    reader = read(legacy())
    assert "event 25" in reader.text("#figures")
    reader.hover(0.5)
    assert "event 1" in reader.text("#tip")


@pytest.mark.parametrize(
    "rows", [[], [{"size": 1, "allocated": 1, "address": 1}]], ids=["empty", "one event"]
)
def test_a_page_of_little_opens(read, rows):
    reader = read(timeline_of(rows))
    assert ("Nothing in this recording" in reader.text("main")) == (not rows)
    reader.page.locator("#theme").click()


def test_a_page_of_a_million_events_is_small_and_shows_what_was_live(read, tmp_path):
    """However many events there were, the page has as many bins: ten million make no larger one."""
    info, tables, batches = synthetic_batches(340_000)
    fold = TimelineFold(dataclasses.replace(info, command_line=("train.py",)), tables)
    for batch in batches:
        fold.add(batch)
    timeline = fold.result(RecordingEnd())
    assert timeline.events > 1_000_000
    reader = read(timeline)
    assert (tmp_path / "page.html").stat().st_size < 3_000_000
    for fraction in (0.1, 0.5, 0.9):
        reader.hover(fraction)
        reader.click(fraction)
    assert reader.page.locator("#live li").count() >= 20
    reader.drag(0.4, 0.42)
