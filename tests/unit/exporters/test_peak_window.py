"""Where to look first in a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_recordings import Made, two_steps

from memexport.exporters._peak_window import PeakWindow, Window, window_around
from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import EventKind

BOUNDS = Window(0, 100_000)


@pytest.mark.parametrize(
    ("peak", "step", "expected"),
    [
        (50_000, None, Window(44_500, 55_500)),
        (50_000, Window(40_000, 60_000), Window(39_000, 61_000)),
        (0, None, Window(0, 5_500)),
        (100_000, None, Window(94_500, 100_000)),
        (50_000, BOUNDS, BOUNDS),
        (7, Window(7, 7), Window(6, 8)),
    ],
    ids=["tenth", "step", "first", "last", "all", "no length"],
)
def test_it_is_the_step_or_a_tenth_and_never_beyond_the_trace(
    peak: int, step: Window | None, expected: Window
) -> None:
    """The UI ignores a window that is not within the trace."""
    found = window_around(peak, step, BOUNDS)
    assert found == expected


def test_a_trace_of_no_length_has_none() -> None:
    """There is nothing to zoom to."""
    assert window_around(0, None, Window(0, 0)) is None


def found_in(made: Made, size: int = 1_000) -> Window | None:
    """By writing it, in batches of so many events."""
    peak = PeakWindow()
    peak.begin(made.info, made.tables)
    for batch in made.batches(size):
        peak.write(batch)
    peak.end(made.end)
    return peak.window()


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_it_is_the_step_with_the_peak(size: int) -> None:
    """However the events come."""
    window = found_in(two_steps(), size)
    assert window is not None
    assert window.begin_ns <= 100_500 < 111_000 < window.end_ns
    assert window.begin_ns > 20_500


def test_the_window_lies_in_the_trace_that_the_exporter_writes(tmp_path: Path, load_trace) -> None:
    """By the importer's own bounds."""
    made = two_steps()
    path = made.write(PerfettoExporter, tmp_path / "a.pftrace")
    bounds = load_trace(path).query("SELECT start_ts, end_ts FROM trace_bounds")[0]
    window = found_in(made)
    assert window is not None
    assert bounds["start_ts"] <= window.begin_ns < window.end_ns <= bounds["end_ts"]


def test_without_a_counter_there_is_no_peak_to_look_at() -> None:
    """A marker's counter is not a device's."""
    made = Made()
    made.operator("x", 0, 10, device=0)
    made.add(EventKind.MARKER, 5, allocated_bytes=7)
    assert found_in(made) is None
