"""Limits: kept, not kept, and what cannot be judged, which is never a silent pass; and the JUnit report."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from made_runs import Run

from memexport.analysis.junit import Judged, junit_xml
from memexport.analysis.limits import Limits, Verdict, judge
from memexport.analysis.tolerance import Tolerance

MIB = 1 << 20


def verdict(run, **limits):
    """The only one."""
    (found,) = judge(run.summary(), Limits(**limits))
    return found


def growing(slope, steps=6):
    run = Run()
    for _ in range(steps):
        run.allocate(slope, module="layers.0").end_step()
    return run


@pytest.mark.parametrize(("limit", "is_kept"), [(10 * MIB, True), (10 * MIB - 1, False), (0, False)])
def test_a_peak_may_reach_its_limit_and_not_exceed_it(limit, is_kept):
    assert verdict(Run().allocate(10 * MIB), max_peak_bytes=limit).is_kept == is_kept


def test_a_peak_over_its_limit_names_device_figures_operator_and_module():
    (reason,) = verdict(Run().allocate(3 * MIB, module="head"), max_peak_bytes=MIB).reasons
    assert reason == (
        "cpu peaked at 3.00 MiB, 2.00 MiB over the limit of 1.00 MiB, in aten.mm.default of head (forward)"
    )


def test_above_the_start_what_lived_before_does_not_count():
    run = Run().allocate(100 * MIB)
    run._event(6, name="start", device=-1, allocated_bytes=-1)
    run.allocate(2 * MIB)
    assert verdict(run, max_peak_bytes=2 * MIB, above_start=True).is_kept
    assert not verdict(run, max_peak_bytes=2 * MIB - 1, above_start=True).is_kept
    assert not verdict(run, max_peak_bytes=2 * MIB).is_kept


@pytest.mark.parametrize(("limit", "is_kept"), [(MIB, True), (MIB - 1, False)])
def test_growth_may_reach_its_limit_and_not_exceed_it(limit, is_kept):
    assert verdict(growing(MIB), max_growth_bytes=limit).is_kept == is_kept


def test_growth_over_its_limit_names_the_module():
    (reason,) = verdict(growing(MIB), max_growth_bytes=1).reasons
    assert (
        reason == "cpu grows by 1.00 MiB a step over 5 steps, and 1 B are allowed; 1.00 MiB of it in layers.0"
    )


@pytest.mark.parametrize(
    ("steps", "said"), [(0, "the recording has no steps"), (3, "only 3 steps were recorded")]
)
def test_growth_without_enough_steps_is_a_failure_with_that_reason(steps, said):
    run = growing(1, steps) if steps else Run().allocate(1)
    found = verdict(run, max_growth_bytes=MIB)
    assert not found.is_kept
    assert said in found.reasons[0]


def test_a_counter_that_is_not_known_is_a_failure_with_that_reason():
    run = Run(counted=False).allocate(1)
    assert verdict(run, max_peak_bytes=MIB).reasons == ("cpu: what is allocated is not known",)
    assert not verdict(run, baseline=Run().allocate(1).summary()).is_kept


def test_a_device_that_is_not_there_is_a_failure_that_lists_those_that_are():
    (reason,) = verdict(Run().allocate(1), max_peak_bytes=MIB, devices=("cuda:0",)).reasons
    assert reason == "cuda:0 is not in the recording; its devices: cpu"


def test_a_recording_without_any_device_is_a_failure():
    assert not verdict(Run(), max_peak_bytes=MIB).is_kept
    assert verdict(Run(), max_peak_bytes=MIB, above_start=True).is_kept, "watched, and nothing was allocated"
    assert not verdict(Run(), max_growth_bytes=MIB, above_start=True).is_kept


@pytest.mark.parametrize(
    ("tolerance", "is_kept"),
    [
        (Tolerance(), False),
        (Tolerance(percent=1.9), False),
        (Tolerance(percent=2), True),
        (Tolerance(bytes=2 * MIB), True),
    ],
)
def test_a_baseline_may_be_exceeded_by_its_tolerance(tolerance, is_kept):
    base = Run().allocate(100 * MIB).summary()
    assert verdict(Run().allocate(102 * MIB), baseline=base, tolerance=tolerance).is_kept == is_kept


def test_a_device_of_the_baseline_that_is_gone_is_a_failure():
    base = Run("cuda", index=0).allocate(1).summary()
    found = verdict(Run().allocate(1), baseline=base)
    assert found.reasons == (
        "cpu: what is allocated is not known in the baseline",
        "cuda:0 is not in the recording; its devices: cpu",
    )


def test_each_limit_has_a_verdict_of_its_own_in_order():
    run = growing(MIB)
    verdicts = judge(run.summary(), Limits(1, 1, run.summary()))
    assert [(found.limit, found.is_kept) for found in verdicts] == [
        ("max-peak", False),
        ("max-growth", False),
        ("baseline", True),
    ]


def test_a_junit_report_has_a_test_case_for_each_limit_and_input():
    kept, broken = Verdict("max-peak", (), ("fine",)), Verdict("max-growth", ("bad\x1b[31m", "worse"), ())
    suites = ElementTree.fromstring(
        junit_xml([Judged("a.memx", (kept, broken)), Judged("<b>\x1b", error="cut & gone")])
    )
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("3", "1", "1")
    cases = [(case.get("classname"), case.get("name")) for case in suites.iter("testcase")]
    assert cases == [("a.memx", "max-peak"), ("a.memx", "max-growth"), ("<b>\\x1b", "readable")]
    (failure,) = suites.iter("failure")
    assert (failure.get("message"), failure.text) == ("bad\\x1b[31m", "bad\\x1b[31m\nworse")
    (error,) = suites.iter("error")
    assert error.get("message") == "cut & gone"
