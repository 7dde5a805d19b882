"""The options that choose a part of a recording do so, the same in every command."""

from __future__ import annotations

import json

import pytest
from bench.synthetic import synthetic_batches

from memexport import pipeline
from memexport.model import EventBatch, EventKind, RecordingEnd


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    """An archive of some training steps, and its events."""
    path = tmp_path_factory.mktemp("synthetic") / "run.memx"
    info, tables, stream = synthetic_batches(20_000)
    batches = list(stream)
    exporter = pipeline.exporter_to(path)
    exporter.begin(info, tables)
    for batch in batches:
        exporter.write(batch)
    exporter.end(RecordingEnd())
    return path, info, EventBatch.concat(batches)


@pytest.fixture
def summary(memexport_cli, synthetic):
    """The summary of a part of it."""

    def of(*options):
        result = memexport_cli("summary", synthetic[0], "--json", *options)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return of


def test_a_range_of_events_has_the_counters_of_the_whole_there(summary, synthetic):
    allocated = synthetic[2].allocated_bytes
    part = summary("--from", "20000", "--until", "#30000")["devices"]["cuda:0"]
    known = allocated[:20_000][allocated[:20_000] >= 0]
    inside = allocated[20_000:30_000]
    assert part["allocated"] == {
        "start": known[-1],
        "peak": max(known[-1], inside.max()),
        "end": inside[inside >= 0][-1],
    }
    assert sum(part["categories_at_peak"].values()) == part["allocated"]["peak"]


def test_ranges_that_meet_have_every_operator_once(summary):
    whole = summary()
    halves = [summary("--until", "50ms"), summary("--from", "50ms")]
    assert sum(half["operators"] for half in halves) == whole["operators"]
    assert (
        halves[0]["devices"]["cuda:0"]["allocated"]["end"]
        == (halves[1]["devices"]["cuda:0"]["allocated"]["start"])
    )
    peaks = [half["devices"]["cuda:0"]["allocated"]["peak"] for half in halves]
    assert max(peaks) == whole["devices"]["cuda:0"]["allocated"]["peak"]


def test_small_allocations_are_left_out_and_the_peak_stays(summary):
    whole, part = summary(), summary("--min-bytes", "1MiB")
    assert part["allocations"] < whole["allocations"]
    assert part["operators"] == whole["operators"]
    assert part["devices"]["cuda:0"]["allocated"] == whole["devices"]["cuda:0"]["allocated"]
    assert "allocations of less than 1048576 bytes were left out" in part["warnings"][-1]


def test_a_device_is_chosen_by_name(summary, memexport_cli, synthetic):
    assert list(summary("--device", "cuda:0")["devices"]) == ["cuda:0"]
    result = memexport_cli("summary", synthetic[0], "--device", "cuda:1")
    assert result.exit_code == 2
    assert "hint: devices: cuda:0" in result.stderr


def test_a_range_becomes_a_trace_that_begins_with_it(memexport_cli, synthetic, tmp_path, load_trace):
    options = ["--from", "40ms", "--until", "60ms", "-o", tmp_path / "part.pftrace"]
    result = memexport_cli("convert", synthetic[0], *options)
    assert result.exit_code == 0, result.stderr
    trace = load_trace(tmp_path / "part.pftrace")
    (bounds,) = trace.query("SELECT min(ts) AS first, max(ts + dur) AS last, count() AS slices FROM slice")
    assert 0 <= bounds["first"] < 20_000_000
    assert bounds["last"] <= 20_000_000
    _, info, events = synthetic
    ends = events.time_unix_ns + events.duration_ns.clip(0) - info.start_time_unix_ns
    operators = (events.kind == EventKind.OPERATOR) & (ends >= 40_000_000) & (ends < 60_000_000)
    assert bounds["slices"] >= operators.sum() > 100


def test_a_range_becomes_an_archive_that_sums_up_the_same(memexport_cli, synthetic, summary, tmp_path):
    options = ["--from", "40ms", "--until", "60ms"]
    memexport_cli("convert", synthetic[0], *options, "-o", tmp_path / "part.memx")
    part = json.loads(memexport_cli("summary", tmp_path / "part.memx", "--json").stdout)
    assert part["devices"] == summary(*options)["devices"]
    assert "what comes after the selected range was not read" in part["warnings"]


@pytest.mark.parametrize(
    "options",
    [
        ["--from", "yesterday"],
        ["--until", ""],
        ["--from", "2s", "--until", "1s"],
        ["--min-bytes", "many"],
        ["--device", "cuda:9"],
    ],
)
def test_a_part_that_makes_no_sense_is_wrong_usage(memexport_cli, synthetic, tmp_path, options):
    result = memexport_cli("convert", synthetic[0], *options, "-o", tmp_path / "x.jsonl")
    assert result.exit_code == 2
    assert not (tmp_path / "x.jsonl").exists()


def test_a_recording_without_a_clock_takes_event_indices_only(memexport_cli, recording):
    assert memexport_cli("summary", recording, "--from", "5", "--until", "20").exit_code == 0
    result = memexport_cli("summary", recording, "--from", "5s")
    assert result.exit_code == 2
    assert "hint: give event indices" in result.stderr
