"""What one recording has more of than another: the changes add up to the gap, whatever the recordings are."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from event_streams import batch_of, streams
from hypothesis import given
from hypothesis import strategies as st
from made_runs import Run

import memexport
from memexport.analysis.diff import compare
from memexport.analysis.step_uses import StepUseFold
from memexport.analysis.summary import SummaryFold
from memexport.analysis.tolerance import Tolerance, parse_slope, parse_tolerance
from memexport.model import Category, Device, RecordingEnd, RecordingInfo, Tables

MIB = 1 << 20
INFO = RecordingInfo(devices=[Device("cuda", 0), Device("cuda", 1), Device("cpu")])


def diff_of(*runs):
    """What `memexport.diff` makes of them, without files."""
    uses = [run.step_uses().result() for run in runs]
    return compare(("a", "b"), tuple(run.summary() for run in runs), tuple(uses))


def diff_of_streams(*sides):
    summaries, uses = [], []
    for stream in sides:
        tables = Tables()
        batch = batch_of(stream, tables)
        summary, steps = SummaryFold(INFO, tables), StepUseFold(INFO, tables)
        summary.add(batch)
        steps.add(batch)
        summaries.append(summary.result(RecordingEnd()))
        uses.append(steps.result())
    return compare(("a", "b"), tuple(summaries), tuple(uses))


@given(streams, streams)
def test_the_changes_add_up_to_the_gap_by_whatever_they_are_grouped(a, b):
    diff = diff_of_streams(a, b)
    for device in diff.devices.values():
        if device.gap is None:
            continue
        assert sum(row.change for row in device.rows) == device.gap
        assert sum(row.a_bytes for row in device.rows) == device.a_peak_bytes
        for what in ("category", "module", "operator"):
            assert sum(to - of for _, of, to in device.by(what)) == device.gap


@given(streams)
def test_a_recording_does_not_differ_from_itself(stream):
    for device in diff_of_streams(stream, stream).devices.values():
        assert not any(row.change for row in device.rows)
        assert device.parts_at_step is None


@given(streams, streams)
def test_the_other_way_round_every_change_has_the_other_sign(a, b):
    there, back = diff_of_streams(a, b), diff_of_streams(b, a)
    for name, device in there.devices.items():
        changes = Counter((row.category, row.module, row.operator, -row.change) for row in device.rows)
        assert changes == Counter(
            (row.category, row.module, row.operator, row.change) for row in back.devices[name].rows
        )


@given(streams, streams)
def test_a_diff_prints_in_eighty_columns_and_as_json_whatever_it_holds(a, b):
    diff = diff_of_streams(a, b)
    assert max(map(len, str(diff).splitlines())) <= 80
    json.dumps(diff.to_dict())
    diff.to_markdown()


def test_a_gap_is_explained_by_category_module_and_operator_with_what_nobody_explains():
    a = Run().allocate(10 * MIB, Category.PARAMETER, module="head").allocate(4 * MIB, module="body")
    b = (
        Run()
        .allocate(10 * MIB, Category.PARAMETER, module="head")
        .allocate(7 * MIB, module="body")
        .more(2 * MIB)
    )
    device = diff_of(a, b).devices["cpu"]
    assert device.gap == 5 * MIB
    assert [(row.category, row.module, row.operator, row.change // MIB) for row in device.rows] == [
        ("activation", "body", "aten.mm.default", 3),
        ("unattributed", None, None, 2),
        ("parameter", "head", "aten.mm.default", 0),
    ]


def test_steps_are_aligned_and_where_they_part_is_said():
    a, b = Run(), Run()
    for step in range(5):
        for run, size in ((a, 100), (b, 100 if step < 3 else 150)):
            run.allocate(size * MIB)
            run.release(run.last_address).end_step()
    b.end_step()
    device = diff_of(a, b).devices["cpu"]
    assert [step.step for step in device.steps] == [0, 1, 2, 3, 4]
    assert [step.a_peak_bytes // MIB for step in device.steps] == [100] * 5
    assert [step.b_peak_bytes // MIB for step in device.steps] == [100, 100, 100, 150, 150]
    assert device.parts_at_step == 3
    assert device.steps[1].a_duration_ns == 4_000


def test_a_steps_peak_counts_what_was_there_when_it_began():
    run = Run().allocate(10).end_step()
    run.release(run.last_address).end_step()
    run.allocate(3).end_step()
    assert [use.peak_bytes for use in run.step_uses().result()["cpu"].values()] == [10, 10, 3]


def test_devices_are_matched_by_name_and_those_that_only_one_has_are_named():
    diff = diff_of(Run("cuda", index=0).allocate(1), Run().allocate(1))
    assert (diff.devices, diff.only_in_a, diff.only_in_b) == ({}, ("cuda:0",), ("cpu",))
    assert "Only in A: cuda:0" in str(diff)
    assert diff.increases(Tolerance()) == ("no device is in both recordings", "cpu is in B only")


@pytest.mark.parametrize(
    ("tolerance", "is_increase"),
    [("0%", True), ("9.9%", True), ("10%", False), ("9MiB", True), ("10MiB", False)],
)
def test_an_increase_is_one_beyond_the_tolerance(tolerance, is_increase):
    diff = diff_of(Run().allocate(100 * MIB), Run().allocate(110 * MIB))
    assert bool(diff.increases(parse_tolerance(tolerance))) == is_increase


def test_less_is_no_increase():
    assert diff_of(Run().allocate(2), Run().allocate(1)).increases(Tolerance()) == ()


def test_a_peak_that_is_not_known_is_no_silent_pass():
    diff = diff_of(Run().allocate(1), Run(counted=False).allocate(1))
    assert diff.increases(Tolerance(percent=1000)) == ("cpu: the peak is not known in B",)
    assert diff.devices["cpu"].gap is None


def test_the_public_function_reads_files_and_leaves_recordings_open(tmp_path):
    a, b = Run().allocate(1).save(tmp_path / "a.memx"), Run().allocate(3).save(tmp_path / "b.memx")
    with memexport.open(a) as first:
        diff = memexport.diff(first, b)
        assert first.summary().events == 1
    assert (diff.a, diff.b, diff.devices["cpu"].gap) == (str(a), str(b), 2)


@given(st.floats(0, 1000), st.integers(0, 2**50))
def test_a_tolerance_allows_at_least_what_was_there_and_grows_with_it(percent, before):
    assert Tolerance(percent=percent).allows(before) >= before


@pytest.mark.parametrize("text", ["", "-1%", "two", "2 percent", "%"])
def test_what_is_no_tolerance_is_refused(text):
    with pytest.raises(ValueError, match="is no tolerance"):
        parse_tolerance(text)


@pytest.mark.parametrize("text", ["1MiB/step", "1 MiB / Step", "1MiB", "1048576"])
def test_a_slope_is_a_size_with_or_without_its_step(text):
    assert parse_slope(text) == MIB


def test_what_is_no_slope_is_refused():
    with pytest.raises(ValueError, match="write 1MiB/step"):
        parse_slope("1MiB/epoch")
