"""The report for people: units, widths, and nothing that steers a terminal."""

from __future__ import annotations

import pytest
from event_streams import batch_of, event
from hypothesis import given
from hypothesis import strategies as st

from memexport.analysis.summary import SummaryFold
from memexport.analysis.text import human_bytes, human_duration, human_time, printable
from memexport.model import Category, Device, EventKind, RecordingEnd, RecordingInfo, Tables

ESCAPE = "\x1b[31mred\x1b[0m\nnext\u202eline"


def report_of(*stream, **info):
    """The report over these events."""
    tables = Tables()
    fold = SummaryFold(RecordingInfo(**{"devices": [Device("cpu")], **info}), tables)
    fold.add(batch_of(list(stream), tables))
    return str(fold.result(RecordingEnd(warnings=(ESCAPE,))))


def test_a_report_names_counters_categories_modules_operators_and_warnings():
    text = report_of(
        event(
            EventKind.ALLOCATION,
            address=1,
            size_bytes=2048,
            allocated_bytes=2048,
            name="aten.mm.default",
            module="layers.0",
            category=Category.ACTIVATION,
        ),
        event(EventKind.OPERATOR, name="aten.mm.default", module="layers.0", size_bytes=2048),
        event(EventKind.MARKER, name="halfway"),
    )
    for part in (
        "2.00 KiB",
        "activation",
        "layers.0",
        "aten.mm.default",
        "Markers: halfway",
        "Warning:",
        "100.0%",
    ):
        assert part in text


STACK = ["/home/me/train.py:3:main", "/home/me/model.py:7:forward", "??:0:at::empty()"]


def test_a_report_shows_the_users_code_at_the_peak_and_what_was_reserved_in_vain():
    text = report_of(
        event(
            EventKind.ALLOCATION,
            address=1,
            size_bytes=3 << 20,
            allocated_bytes=3 << 20,
            active_bytes=3 << 20,
            reserved_bytes=4 << 20,
            stack=STACK,
        ),
        event(
            EventKind.ALLOCATION, address=2, size_bytes=5, allocated_bytes=(3 << 20) + 5, stack=["a.py:1:f"]
        ),
    )
    assert "cpu: reserved but not active at the peak: 1.00 MiB of 4.00 MiB (25.0%)" in text
    assert ["model.py:7", "forward", "3.00", "MiB", "100.0%", "1"] in [
        line.split() for line in text.splitlines()
    ]
    assert "  in train.py:3 main" in text
    assert "unattributed" not in text, "the stacks say whose it is"
    assert "a.py" not in text, "nobody looks for five bytes"


def test_a_report_with_modules_does_not_repeat_itself_by_stack():
    allocation = event(
        EventKind.ALLOCATION, address=1, size_bytes=8, allocated_bytes=8, module="layers.0", stack=STACK
    )
    assert "by stack" not in report_of(allocation)


def test_a_report_lists_requests_that_failed():
    text = report_of(
        event(EventKind.SAMPLE, name="device_free", size_bytes=1 << 30),
        event(EventKind.MARKER, name="oom", size_bytes=2 << 30, stack=STACK),
        event(EventKind.MARKER, name="oom"),
    )
    lines = text.splitlines()
    place = lines.index("cpu ran out of memory")
    assert lines[place + 1].startswith("  2.00 GiB requested at 1970-01-01")
    assert lines[place + 1].endswith(", 1.00 GiB free")
    assert lines[place + 2] == "    in model.py:7 forward"
    assert lines[place + 3].startswith("  an unknown size requested at")


def test_long_frames_are_cut_to_one_line():
    stack = [f"/home/me/a.py:1:{'long' * 40}"]
    text = report_of(event(EventKind.ALLOCATION, address=1, size_bytes=8, allocated_bytes=8, stack=stack))
    (line,) = [line for line in text.splitlines() if "a.py:1" in line]
    assert "\N{HORIZONTAL ELLIPSIS}" in line
    assert len(line) <= 80


def test_frames_from_a_file_cannot_steer_the_terminal():
    text = report_of(
        event(EventKind.ALLOCATION, address=1, size_bytes=8, allocated_bytes=8, stack=[f"/a.py:1:{ESCAPE}"]),
        event(EventKind.MARKER, name="oom", size_bytes=1, stack=[f"/a.py:1:{ESCAPE}"]),
    )
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_names_from_a_file_cannot_steer_the_terminal():
    text = report_of(event(EventKind.OPERATOR, name=ESCAPE, module=ESCAPE, allocated_bytes=1), format=ESCAPE)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_report_does_not_depend_on_the_environment(monkeypatch):
    plain = report_of(event(EventKind.SAMPLE, allocated_bytes=1))
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "20", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    assert report_of(event(EventKind.SAMPLE, allocated_bytes=1)) == plain


def test_names_that_look_like_markup_are_shown_as_they_are():
    assert "[bold]x[/bold]" in report_of(event(EventKind.OPERATOR, name="[bold]x[/bold]", size_bytes=1))


def test_a_source_without_a_clock_shows_no_times():
    text = report_of(event(EventKind.OPERATOR, time_unix_ns=3_000, allocated_bytes=1), clock="index")
    assert "at event 3" in text
    assert "UTC" not in text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (-1536, "\N{MINUS SIGN}1.50 KiB"),
        (-3, "\N{MINUS SIGN}3 B"),
        (2**63 - 1, "8.00 EiB"),
        (2**80, "1048576.00 EiB"),
    ],
)
def test_bytes_are_shown_in_binary_units(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (999, "999 ns"),
        (1_500, "1.5 µs"),
        (12_300_000, "12.3 ms"),
        (4_500_000_000, "4.5 s"),
        (3_723 * 10**9, "1:02:03"),
    ],
)
def test_durations_are_shown_in_a_unit_that_suits_them(duration_ns, text):
    assert human_duration(duration_ns) == text


def test_a_moment_is_shown_in_utc_and_an_impossible_one_as_it_is():
    assert human_time(1_770_091_506_789_000_000) == "2026-02-03 04:05:06.789 UTC"
    assert human_time(2**63 - 1).endswith(("UTC", "ns"))


@given(st.text())
def test_printable_text_has_no_control_characters_and_leaves_the_rest_alone(text):
    shown = printable(text)
    assert shown.isprintable()
    assert not text.isprintable() or shown == text
