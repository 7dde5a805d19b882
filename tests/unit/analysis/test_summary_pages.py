"""The page of a summary: its order, its widths, its colours, and its Markdown."""

from __future__ import annotations

import re

import pytest
from event_streams import batch_of, streams
from hypothesis import given
from hypothesis import strategies as st
from made_runs import Run

from memexport.analysis import markdown
from memexport.analysis.page import Style, bar_text
from memexport.analysis.report import render_text
from memexport.analysis.summary import SummaryFold
from memexport.model import (
    NULLS,
    Category,
    Device,
    EventKind,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

MIB = 1 << 20
ANSI = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "@everyone | `x` <script> #1 https://example.org [a](b) *b* _c_ ~~d~~ \\| \x1b[2J"


def leaking():
    """A run with something of everything."""
    run = Run("cuda", index=0).allocate(3 * MIB, Category.PARAMETER, module="layers.0", reserved_bytes=MIB)
    for _ in range(6):
        run.allocate(MIB, module="layers.1", active_bytes=run.allocated, reserved_bytes=200 * MIB).end_step()
    return run.summary(alloc_retries=2, ooms=1)


def test_a_page_answers_in_the_order_in_which_people_ask():
    text = " ".join(str(leaking()).split())
    parts = [
        "cuda:0 peaked at 9.00 MiB in aten.mm.default of layers.1 (forward), at 2026-",
        "Memory",
        "at the peak, by category",
        "at the peak, by module",
        "at the peak, by operator",
        "Live after each step on cuda:0: a leak?",
        "cuda:0: reserved but not active at the peak",
        "2 allocation retries",
        "1 failed request",
        "What to try next",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert re.search(r"layers\.1 +\+1\.00 MiB +\d\.00 MiB +6\.00 MiB +4 of 4", text)


def test_bars_show_shares():
    lines = str(leaking()).splitlines()
    (activation,) = [line for line in lines if line.startswith("activation ")]
    assert activation.endswith("66.7%   " + "█" * 20), "of 30 columns"


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("colours", [None, "standard", "truecolor"])
def test_a_page_keeps_to_its_width_and_has_colours_only_if_asked(width, colours):
    text = render_text(leaking(), Style(width, colours))
    assert max(len(ANSI.sub("", line)) for line in text.splitlines()) <= width
    assert bool(ANSI.search(text)) == (colours is not None)


def test_colours_change_nothing_but_the_colours():
    plain, coloured = render_text(leaking(), Style(100)), render_text(leaking(), Style(100, "256"))
    assert [line.rstrip() for line in ANSI.sub("", coloured).splitlines()] == plain.splitlines()


def test_a_bar_without_block_elements_is_made_of_ascii():
    assert not set(render_text(leaking(), Style(blocks=False))) & set("▏▎▍▌▋▊▉█")


@given(st.floats(0, 1), st.integers(1, 40))
def test_a_bar_is_as_long_as_its_share(share, width):
    text = bar_text(share, width)
    eighths = sum("▏▎▍▌▋▊▉█".index(character) + 1 for character in text)
    assert abs(eighths - share * width * 8) <= 1
    assert bool(text) == (share > 0)
    assert len(bar_text(share, width, blocks=False)) <= width


def test_steady_memory_is_said_in_one_line():
    run = Run().allocate(10)
    for _ in range(6):
        run.end_step()
    assert "cpu does not grow from step to step: 0 B a step at the ends of 5 steps" in str(run.summary())


@given(streams)
def test_markdown_can_be_made_of_whatever_there_is(stream):
    tables = Tables()
    fold = SummaryFold(RecordingInfo(devices=[Device("cuda", 0)] * 3), tables)
    fold.add(batch_of(stream, tables))
    fold.result(RecordingEnd(warnings=(HOSTILE,))).to_markdown()


def cells(line):
    """Of a table's row, as GitHub splits it: at pipes without a backslash."""
    return re.split(r"(?<!\\)\|", line)[1:-1]


def outside_of_code(text):
    """What of the text Markdown reads as such."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def test_hostile_names_are_neither_markup_nor_mentions_nor_cells_in_markdown():
    run = Run()
    for _ in range(6):
        run.allocate(MIB, name=HOSTILE, module=HOSTILE).end_step()
    text = run.summary().to_markdown()
    assert "\x1b" not in text
    widths = {}
    for line in text.splitlines():
        bare = outside_of_code(line)
        assert not re.search(r"[@#]|://", bare), line
        assert not re.search(r"(?<!\\)[<\[*_~`]", bare.replace("**", "")), line
        if line.startswith("|"):
            block = widths.setdefault(text[: text.index(line)].count("\n\n"), len(cells(line)))
            assert len(cells(line)) == block, line


@given(st.text(min_size=1))
def test_a_name_in_a_code_span_cannot_leave_it(name):
    span = markdown.code(name)
    assert outside_of_code(span) == ""
    assert len(cells(f"| {span} | x |")) == 2


def test_markdown_has_the_figures_of_the_page():
    text = leaking().to_markdown()
    assert text.startswith("**cuda:0 peaked at 9.00 MiB in aten.mm.default of layers.1 (forward)")
    assert "| `cuda:0` | allocated | 0 B | 9.00 MiB | 9.00 MiB |" in text
    assert "| `activation` | 6.00 MiB | 66.7% | ██████████▋ |" in text
    assert "| `layers.1` | +1.00 MiB |" in text
    assert "**What to try next**" in text


def test_markdown_has_the_ranks_that_the_page_has():
    """Of many, those that it lists."""
    several = Run("cuda", index=0, world_size=12)
    for rank in range(12):
        several.allocate(
            MIB if rank != 7 else 4 * MIB, rank=rank, allocated_bytes=MIB if rank != 7 else 4 * MIB
        )
    text = several.summary().to_markdown()
    assert "**12 ranks on cuda: median peak 1.00 MiB, spread 3.00 MiB (300.0%)**" in text
    assert "| `rank 7 cuda:0` | 4.00 MiB | +3.00 MiB | forward | odd one out |" in text
    assert "| … and 2 more |" in text
    assert "The odd one out, rank 7, peaks with 3.00 MiB more than rank 0" in text
    assert "| at the peak, by category | rank 7 | rank 0 | more |" in text
    assert "rank 3 cuda:0 peaked" not in text, "only the two that are compared"


def test_markdown_has_the_requests_that_failed_and_what_lived_then():
    run = Run("cuda", index=0).allocate(2 * MIB, Category.PARAMETER, module="net")
    run.allocate(6 * MIB, module="head").release(run.last_address).allocate(MIB, module="b|y")
    stack = [run.tables.strings.intern(frame) for frame in ("/x/train.py:7:main", "aten::mm")]
    oom = {"name": run.tables.strings.intern("oom"), "size_bytes": 4 * MIB}
    run._event(EventKind.MARKER, **oom, module="head", stack=run.tables.stacks.intern(stack))
    run._event(EventKind.MARKER, **{**oom, "size_bytes": NULLS["size_bytes"]})
    text = run.summary(ooms=2).to_markdown()
    assert "**cuda:0 ran out of memory**" in text
    assert re.search(
        r"^- 4\.00 MiB requested at 2026-.* of head \(forward\), in `train.py:7 main`$", text, re.M
    )
    assert re.search(r"^- an unknown size requested at 2026-", text, re.M)
    assert (
        "| when it failed, by module | bytes | share |  |\n| --- | ---: | ---: | --- |\n| `net` | 2.00"
        in text
    )
    assert "| `b\\|y` | 1.00 MiB | 33.3% |" in text


def test_markdown_has_the_stacks_where_no_modules_are_known():
    run = Run("cuda", index=0)
    stack = [run.tables.strings.intern(frame) for frame in ("/x/train.py:7:main", "/x/net.py:3:forward")]
    text = run.allocate(MIB, stack=run.tables.stacks.intern(stack)).summary().to_markdown()
    assert "| `net.py:3 forward` in `train.py:7 main` | 1.00 MiB | 100.0% | 1 |" in text
