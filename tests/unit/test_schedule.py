"""Which steps are recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memexport.errors import UsageError
from memexport.schedule import Schedule


def recorded(schedule: Schedule | None, count: int = 40) -> list[int]:
    assert schedule is not None
    return [step for step in range(count) if schedule.records(step)]


def test_without_a_word_every_step_is_recorded() -> None:
    assert Schedule.of(None, None, None) is None


def test_every_begins_with_step_0() -> None:
    assert recorded(Schedule.of(10, None, None)) == [0, 10, 20, 30]


def test_a_window_is_so_many_steps_one_after_another() -> None:
    assert recorded(Schedule.of(15, 3, None)) == [0, 1, 2, 15, 16, 17, 30, 31, 32]


def test_a_range_ends_before_its_second_number() -> None:
    assert recorded(Schedule.of(None, None, (3, 6))) == [3, 4, 5]


def test_several_ranges_may_touch() -> None:
    assert recorded(Schedule.of(None, None, [(0, 2), (2, 4), (30, 31)])) == [0, 1, 2, 3, 30]


def test_in_a_range_every_counts_from_its_first_step() -> None:
    assert recorded(Schedule.of(4, 2, [(1, 8), (30, 33)])) == [1, 2, 5, 6, 30, 31]


@given(
    every=st.one_of(st.none(), st.integers(2, 9)),
    window=st.integers(1, 8),
    edges=st.lists(st.integers(0, 60), unique=True, max_size=8),
)
def test_the_next_change_is_where_the_answer_changes_next(
    every: int | None, window: int, edges: list[int]
) -> None:
    edges = sorted(edges)
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    if every is None and not pairs:
        return
    schedule = Schedule.of(every, min(window, every - 1) if every else None, pairs or None)
    assert schedule is not None
    for step in range(70):
        changes = (s for s in range(step + 1, 90) if schedule.records(s) != schedule.records(step))
        assert schedule.next_change(step) == next(changes, None)


@pytest.mark.parametrize(
    ("every", "window", "steps", "message"),
    [
        pytest.param(None, 2, None, "every", id="window-alone"),
        pytest.param(None, 2, (0, 5), "every", id="window-with-steps-alone"),
        pytest.param(1, None, None, "leaves none out, or all", id="every-step"),
        pytest.param(0, None, None, "leaves none out, or all", id="every-none"),
        pytest.param(5, 5, None, "leaves none out, or all", id="window-as-long-as-every"),
        pytest.param(5, 0, None, "leaves none out, or all", id="no-window"),
        pytest.param(None, None, (5, 5), "no range", id="empty-range"),
        pytest.param(None, None, (-1, 5), "no range", id="negative"),
        pytest.param(None, None, [(5, 9), (8, 12)], "no range", id="overlap"),
        pytest.param(None, None, [], "no range", id="no-ranges"),
    ],
)
def test_what_makes_no_sense_is_refused(
    every: int | None, window: int | None, steps: object, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Schedule.of(every, window, steps)  # type: ignore[arg-type]  # that is what is tried


def test_the_options_of_a_recording_say_the_schedule() -> None:
    assert Schedule(1000, 2).as_text() == {"every": "1000", "window": "2"}
    assert Schedule(ranges=((0, 2), (5, 6))).as_text() == {"steps": "0:2,5:6"}
