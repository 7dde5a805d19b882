"""A summary's numbers equal those of a slow fold over the same events, wherever the batches are cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import summary_oracle
from event_streams import batch_of, event, one_place, streams
from hypothesis import given, settings
from hypothesis import strategies as st

from memexport.analysis.places import Place, place_names
from memexport.analysis.summary import Summary, SummaryFold
from memexport.model import Category, Device, EventKind, Phase, RecordingEnd, RecordingInfo, Tables

INFO = RecordingInfo(devices=[Device("cuda", 0), Device("cuda", 1), Device("cpu")])
TOTALS = ("events", "operators", "allocations", "releases", "steps", "duration_ns", "markers")


def fold_of(stream: list[dict[str, Any]], cuts: list[int] = (), info: RecordingInfo = INFO) -> SummaryFold:
    """Fold the stream, cut before the events at these indices."""
    tables = Tables()
    fold = SummaryFold(info, tables)
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    for begin, stop in itertools.pairwise(bounds):
        fold.add(batch_of(stream[begin:stop], tables))
    return fold


def summary_of(stream: list[dict[str, Any]], cuts: list[int] = (), **end: Any) -> Summary:
    """Fold the stream and sum it up."""
    return fold_of(stream, cuts).result(RecordingEnd(**end))


def device_of(*stream: dict[str, Any]) -> dict[str, Any]:
    """The JSON of device 0 after these events."""
    return summary_of(list(stream)).to_dict()["devices"]["cuda:0"]


def assert_equals_oracle(stream: list[dict[str, Any]], cuts: list[int]) -> None:
    """Compare every number of the summary."""
    fold = fold_of(stream, cuts)
    summary, expected = fold.result(RecordingEnd()).to_dict(), summary_oracle.summarize(stream)
    assert {key: summary[key] for key in TOTALS} == {key: expected[key] for key in TOTALS}
    assert {
        (row["operator"], row["module"], row["phase"]): (row["bytes"], row["count"])
        for row in summary["top_operators"]
    } == expected["top_operators"] or len(expected["top_operators"]) > 20
    names = place_names([Place(*key) for key in expected["places"]], INFO)
    assert list(summary["devices"]) == [names[Place(*key)] for key in expected["places"]]
    current = fold.usage("current")
    for key, place in expected["places"].items():
        device = summary["devices"][names[Place(*key)]]
        for rows, end in ((device, "_at_peak"), *((request, "") for request in device["failed_requests"])):
            _by_key(rows, end)
        assert device == place
        assert current[names[Place(*key)]].keys() - {"total"} == expected["current"][key].keys()
        assert expected["current"][key].items() <= current[names[Place(*key)]].items()


def _by_key(rows: dict[str, Any], end: str) -> None:
    """Make of each list who holds what a dict, as the oracle has it."""
    for key in ("module", "operator"):
        rows[f"{key}s{end}"] = {row[key]: row["bytes"] for row in rows[f"{key}s{end}"]}
    rows[f"stacks{end}"] = {
        row["stack"] and tuple(row["stack"]): (row["bytes"], row["count"]) for row in rows[f"stacks{end}"]
    }


@settings(max_examples=400)
@given(streams, st.lists(st.integers(0, 80), max_size=4))
def test_every_number_equals_the_oracle_for_several_ranks_and_devices(stream, cuts):
    assert_equals_oracle(stream, cuts)


@given(one_place, st.lists(st.integers(0, 80), max_size=4))
def test_every_number_equals_the_oracle_on_one_device(stream, cuts):
    assert_equals_oracle(stream, cuts)


@given(streams, st.lists(st.integers(0, 80), max_size=4))
def test_where_the_batches_are_cut_does_not_show(stream, cuts):
    assert summary_of(stream, cuts) == summary_of(stream)


@given(streams, st.integers(0, 80))
def test_a_result_asked_for_midway_changes_nothing(stream, cut):
    tables = Tables()
    fold = SummaryFold(INFO, tables)
    fold.add(batch_of(stream[:cut], tables))
    halfway = fold.result(RecordingEnd())
    fold.add(batch_of(stream[cut:], tables))
    assert halfway == summary_of(stream[:cut])
    assert fold.result(RecordingEnd()) == summary_of(stream)


@given(streams)
def test_a_summary_prints_in_eighty_columns_whatever_it_holds(stream):
    text = str(summary_of(stream))
    assert max(map(len, text.splitlines())) <= 80


def test_what_lived_before_the_start_marker_counts_at_the_start_but_makes_no_peak():
    device = device_of(
        event(EventKind.ALLOCATION, address=1, size_bytes=900, allocated_bytes=900),
        event(EventKind.RELEASE, address=1, size_bytes=900, allocated_bytes=0),
        event(
            EventKind.ALLOCATION, address=2, size_bytes=70, allocated_bytes=70, category=Category.PARAMETER
        ),
        event(EventKind.MARKER, name="start", device=-1),
        event(
            EventKind.ALLOCATION, address=3, size_bytes=30, allocated_bytes=100, category=Category.GRADIENT
        ),
        event(EventKind.RELEASE, address=3, size_bytes=30, allocated_bytes=70),
    )
    assert device["allocated"] == {"start": 70, "peak": 100, "end": 70}
    assert device["categories_at_peak"] == {"parameter": 70, "gradient": 30}


def test_a_second_start_marker_is_one_like_any_other():
    device = device_of(
        event(EventKind.MARKER, name="start", device=-1),
        event(EventKind.SAMPLE, allocated_bytes=9),
        event(EventKind.SAMPLE, allocated_bytes=1),
        event(EventKind.MARKER, name="start", device=-1),
    )
    assert device["allocated"] == {"start": 9, "peak": 9, "end": 1}


def test_without_a_start_marker_the_start_is_right_before_the_first_known_counter():
    device = device_of(
        event(EventKind.SAMPLE),
        event(EventKind.RELEASE, address=9, size_bytes=40, allocated_bytes=60, time_unix_ns=5),
    )
    assert device["allocated"] == {"start": 100, "peak": 100, "end": 60}
    assert (device["peak_time_unix_ns"], device["peak_operator"]) == (5, None)


def test_what_the_first_known_event_released_is_live_at_a_start_that_is_the_peak():
    device = device_of(
        event(EventKind.ALLOCATION, address=9, size_bytes=40, category=Category.INPUT),
        event(EventKind.RELEASE, address=9, size_bytes=40, allocated_bytes=60),
    )
    assert device["allocated"] == {"start": 100, "peak": 100, "end": 60}
    assert device["categories_at_peak"] == {"unattributed": 60, "input": 40}


def test_the_peak_names_the_allocation_and_the_module_that_made_it():
    device = device_of(
        event(
            EventKind.ALLOCATION,
            time_unix_ns=7,
            address=1,
            size_bytes=8,
            allocated_bytes=8,
            name="aten.mm.default",
            module="layers.0",
            phase=Phase.BACKWARD,
            category=Category.GRADIENT,
        ),
        event(EventKind.RELEASE, address=1, size_bytes=8, allocated_bytes=0, module="layers.1"),
    )
    assert device["peak_operator"] == "aten.mm.default"
    assert (device["peak_module"], device["peak_phase"], device["peak_time_unix_ns"]) == (
        "layers.0",
        "backward",
        7,
    )
    assert device["modules_at_peak"] == [{"module": "layers.0", "bytes": 8}]


def test_what_no_allocation_explains_is_unattributed():
    device = device_of(
        event(EventKind.ALLOCATION, address=1, size_bytes=8, allocated_bytes=10, category=Category.BUFFER)
    )
    assert device["categories_at_peak"] == {"buffer": 8, "unattributed": 2}
    assert device["modules_at_peak"] == [{"module": None, "bytes": 10}]


def test_a_recording_without_allocations_is_unattributed_throughout():
    device = device_of(event(EventKind.OPERATOR, allocated_bytes=10))
    assert device["categories_at_peak"] == {"unattributed": 10}


def test_a_counter_that_is_not_known_is_null():
    device = device_of(event(EventKind.SAMPLE, allocated_bytes=10))
    assert device["active"] is None
    assert device["reserved"] is None


def test_the_peak_marker_does_not_count_as_the_last_event():
    device = device_of(
        event(EventKind.SAMPLE, allocated_bytes=10),
        event(EventKind.SAMPLE, allocated_bytes=4),
        event(EventKind.MARKER, name="peak", allocated_bytes=10),
    )
    assert device["allocated"] == {"start": 10, "peak": 10, "end": 4}


def test_more_tracked_than_the_device_counts_is_said_in_a_warning():
    summary = summary_of([event(EventKind.ALLOCATION, address=1, size_bytes=12, allocated_bytes=10)])
    assert summary.warnings == ("cuda:0: what is live at the peak takes 2 bytes more than its counter says",)


def test_a_flood_of_markers_is_cut_and_counted():
    summary = summary_of([event(EventKind.MARKER, name="tick")] * 1_500, cuts=[700, 1_200])
    assert len(summary.markers) == 1_000
    assert summary.markers[-1].event_index == 999
    assert summary.warnings == ("500 more markers are not listed",)


def test_what_the_recording_says_at_its_end_comes_first_among_the_warnings():
    summary = summary_of([], warnings=("cut",), dropped_events=3, alloc_retries=2, ooms=1)
    assert summary.warnings[0] == "cut"
    assert "3 events were dropped" in summary.warnings[1]
    assert (summary.alloc_retries, summary.ooms) == (2, 1)


def test_an_empty_recording_has_a_summary():
    assert summary_of([]).to_dict() == {
        **dict.fromkeys(("events", "operators", "allocations", "releases", "steps", "duration_ns"), 0),
        "format": "memexport.archive",
        "schema_version": "1.1",
        "clock": "unix",
        "devices": {},
        "top_operators": [],
        "markers": [],
        "alloc_retries": None,
        "ooms": None,
        "warnings": [],
        "growth": {},
        "advice": [],
    }


def test_ranks_are_named_only_where_there_are_several():
    sample = event(EventKind.SAMPLE, allocated_bytes=1)
    assert list(summary_of([{**sample, "rank": 3}]).devices) == ["cuda:0"]
    two = summary_of([{**sample, "rank": 3}, {**sample, "rank": 0}])
    assert list(two.devices) == ["rank 0 cuda:0", "rank 3 cuda:0"]


def test_usage_is_by_device_and_category_with_the_total_last():
    fold = fold_of(
        [
            event(
                EventKind.ALLOCATION, address=1, size_bytes=6, allocated_bytes=6, category=Category.PARAMETER
            ),
            event(
                EventKind.ALLOCATION,
                address=2,
                size_bytes=4,
                allocated_bytes=10,
                category=Category.ACTIVATION,
            ),
            event(EventKind.RELEASE, address=2, size_bytes=4, allocated_bytes=6),
        ]
    )
    assert fold.usage("peak") == {"cuda:0": {"parameter": 6, "activation": 4, "total": 10}}
    assert fold.usage("current") == {"cuda:0": {"parameter": 6, "total": 6}}
    with pytest.raises(ValueError, match="peak"):
        fold.usage("average")
