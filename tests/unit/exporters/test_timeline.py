"""Where events lie on a trace's time axis."""

from __future__ import annotations

from made_recordings import START, Made

from memexport.exporters._timeline import Timeline


def placed(made: Made) -> tuple[Timeline, list[tuple[int, int]]]:
    """The timeline, and begin and end of each event."""
    timeline = Timeline(made.info)
    begin, end = timeline.place(made.batches()[0])
    return timeline, list(zip(begin.tolist(), end.tolist(), strict=True))


def test_times_count_from_the_recordings_start() -> None:
    """Unknown lengths are none."""
    made = Made()
    made.operator("a", 5, 10)
    made.operator("b", 20, -1)
    assert placed(made)[1] == [(5, 15), (20, 20)]


def test_an_event_before_the_recordings_start_moves_the_origin() -> None:
    """What lives already may be older than the recording."""
    made = Made()
    made.operator("a", -7, 10)
    timeline, times = placed(made)
    assert (timeline.origin_unix_ns, times) == (START - 7, [(0, 10)])


def test_an_unknown_start_leaves_room_for_spans() -> None:
    """A span that comes later but begins before the first event is not clipped."""
    made = Made(start_time_unix_ns=None)
    made.operator("a", 0, 10)
    assert placed(made)[1] == [(1_000_000_000, 1_000_000_010)]


def test_what_later_lies_before_the_origin_is_clipped_and_counted() -> None:
    """A negative time would be taken for a huge one."""
    made = Made()
    made.operator("a", 0, 10)
    timeline, _ = placed(made)
    late = Made()
    late.operator("b", -5, 10)
    begin, end = timeline.place(late.batches()[0])
    assert (begin.tolist(), end.tolist(), timeline.clipped_events) == ([0], [5], 1)


def test_without_a_clock_operators_reach_nearly_to_the_next() -> None:
    """A tenth is left for spans that begin with the next one."""
    made = Made(clock="index", start_time_unix_ns=None)
    made.operator("a", 0, -1)
    made.marker("b", 1000)
    assert placed(made)[1] == [(1000, 1900), (2000, 2000)]
