"""What grows from step to step, against a slope that is worked out pair by pair."""

from __future__ import annotations

import statistics
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import Run

from memexport.analysis.growth import MOST_SAMPLES, trend
from memexport.model import Category

KIB = 1024


def run_with(live_after_steps, module="layers.0", **info):
    """A run in which so many bytes of one module are live after each step."""
    run = Run(**info)
    for size in live_after_steps:
        run.release_all().allocate(100 * KIB, Category.TEMPORARY).release(run.last_address)
        run.allocate(size, module=module).end_step()
    return run


def growth_of(run, cuts=()):
    """That of its only device."""
    (growth,) = run.summary(cuts).growth.values()
    return growth


def theil_sen(sizes):
    """The median of the slopes of all pairs, in exact arithmetic as far as Python has it."""
    return statistics.median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(sizes), 2))


@given(st.lists(st.integers(0, 1 << 40), min_size=3, max_size=30))
def test_the_slope_is_the_median_of_the_slopes_of_all_pairs_of_steps_after_the_first(sizes):
    growth = growth_of(run_with([7, *sizes]))
    assert growth.steps_compared == len(sizes)
    assert growth.total.bytes_per_step == pytest.approx(theil_sen(sizes), abs=0.51, rel=1e-12)
    assert (growth.total.first_bytes, growth.total.last_bytes) == (sizes[0], sizes[-1])
    assert growth.total.rises == sum(b > a for a, b in pairwise(sizes))


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=12), st.lists(st.integers(0, 90), max_size=5))
def test_where_the_batches_are_cut_does_not_show(sizes, cuts):
    run = run_with(sizes)
    assert run.summary(cuts) == run.summary()
    assert run.step_uses(cuts).result() == run.step_uses().result()


def test_a_leak_is_suspicious_and_its_module_is_named():
    run = Run()
    for _ in range(8):
        run.allocate(10 * KIB, module="head").allocate(3 * KIB, module="steady")
        run.release(run.last_address).end_step()
    growth = growth_of(run)
    assert growth.total.is_suspicious
    assert [(row.module, row.trend.bytes_per_step, row.trend.rises) for row in growth.suspects] == [
        ("head", 10 * KIB, 6)
    ]


def test_the_first_step_is_left_out_for_what_is_made_once_is_made_in_it():
    run = Run().allocate(1 << 20, Category.OPTIMIZER_STATE).end_step()
    for _ in range(6):
        run.end_step()
    assert growth_of(run).total.bytes_per_step == 0


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([10, 40, 10, 40, 10, 40, 10, 40], id="comes and goes"),
        pytest.param([10, 20, 30, 30, 30, 30, 30, 30, 30, 30], id="a cache that fills up"),
        pytest.param([10, 30, 20, 40, 30, 50, 40, 60], id="falls half as much as it rises"),
        pytest.param([10, 20, 30], id="two rises only"),
        pytest.param([50, 40, 30, 20, 10], id="falls"),
    ],
)
def test_what_does_not_grow_steadily_is_not_suspicious(sizes):
    growth = growth_of(run_with([0, *(size * KIB for size in sizes)]))
    assert not growth.total.is_suspicious
    assert not growth.suspects


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([10, 20, 30, 40], id="every step"),
        pytest.param([10, 20, 20, 30, 30, 40, 40, 50], id="every second step"),
        pytest.param([10, 20, 30, 29, 40, 50, 60, 70], id="with one small fall"),
        pytest.param([10, 20, 900, 900, 900, 910, 920, 930, 940], id="with one jump"),
    ],
)
def test_what_grows_steadily_is_suspicious(sizes):
    assert growth_of(run_with([0, *(size * KIB for size in sizes)])).total.is_suspicious


def test_growth_of_less_than_a_kibibyte_a_step_is_reported_but_not_suspicious():
    growth = growth_of(run_with(range(0, 400, 4)))
    assert growth.total.bytes_per_step == 4
    assert not growth.total.is_suspicious


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_too_few_steps_say_nothing(steps):
    run = run_with([5] * steps) if steps else Run().allocate(5)
    assert growth_of(run) is None


def test_a_step_that_nobody_ended_is_not_compared():
    run = run_with([1, 2, 3, 4])
    run.allocate(1 << 30).end_step(marked=False)
    growth = growth_of(run)
    assert (growth.steps_compared, growth.total.last_bytes) == (3, 4)


def test_without_markers_the_spans_of_steps_are_compared():
    run = Run()
    for _ in range(5):
        run.allocate(2 * KIB).end_step(marked=False)
    assert growth_of(run).steps_compared == 4


def test_what_the_counter_has_beyond_the_allocations_grows_as_nobodys():
    run = Run()
    for _ in range(6):
        run.more(4 * KIB).end_step()
    growth = growth_of(run)
    assert [(row.module, row.trend.bytes_per_step) for row in growth.suspects] == [(None, 4 * KIB)]


def test_without_a_counter_the_allocations_are_what_grows():
    growth = growth_of(run_with([1, 10, 20, 30], counted=False))
    assert (growth.total.first_bytes, growth.total.last_bytes) == (10, 30)


def test_of_very_many_steps_an_even_choice_is_compared_and_memory_stays_bounded():
    growth = growth_of(run_with(range(0, 2_000 * KIB, KIB)))
    assert MOST_SAMPLES / 2 < growth.steps_compared <= MOST_SAMPLES
    assert growth.total.bytes_per_step == KIB
    assert growth.total.is_suspicious


def test_sizes_near_the_largest_number_do_not_overflow():
    sizes = np.array([0, 2**62, 2**62 + 2**61, 2**62 + 2**61 + 2**60], np.int64)
    assert trend(np.arange(4), sizes).bytes_per_step == pytest.approx(theil_sen(sizes.tolist()), rel=1e-9)


def test_of_a_run_with_pauses_the_slope_is_for_each_step_that_was_made():
    run = Run()
    for number in range(6):
        run.allocate(100 * KIB, module="leaking").end_step(skipped=99 if number < 5 else 0)
    assert growth_of(run).total.bytes_per_step == KIB
