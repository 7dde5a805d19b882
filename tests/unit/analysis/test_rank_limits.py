"""Limits on a run of several ranks: every rank is judged, the worst is named, none is missing unnoticed."""

from __future__ import annotations

import pytest
from made_runs import Run

from memexport import pipeline
from memexport.analysis.limits import Limits
from memexport.analysis.rank_limits import LISTED, RankRecording, as_dict, as_text, judge_ranks
from memexport.analysis.rank_summaries import RankSummaries
from memexport.model import RecordingEnd

MIB = 1 << 20


def run_of(*peaks_mib, device=("cuda", 0), world_size=None, ranks=None):
    """A recording for each rank, which peaks at so many MiB."""
    world_size = len(peaks_mib) if world_size is None else world_size
    numbers = range(len(peaks_mib)) if ranks is None else ranks
    return [
        RankRecording(
            f"run-{number}.memx",
            number,
            world_size,
            Run(device[0], index=device[1]).allocate(peak * MIB, module="head").summary(),
        )
        for number, peak in zip(numbers, peaks_mib, strict=True)
    ]


def kept(verdicts):
    return {one.rank: one.is_kept for one in verdicts}


def test_every_rank_is_judged_and_the_worst_comes_first():
    ranks = judge_ranks(run_of(3, 9, 4, 7), Limits(max_peak_bytes=5 * MIB))
    assert kept(ranks) == {0: True, 1: False, 2: True, 3: False}
    lines = as_text(ranks).splitlines()
    assert lines[0].startswith(
        "FAIL  max-peak: rank 1, the worst of 4: cuda:0 peaked at 9.00 MiB, 4.00 MiB over"
    )
    assert [line[:26] for line in lines[1:]] == [
        "FAIL  max-peak: rank 3: cu",
        "ok    max-peak: rank 2: cu",
        "ok    max-peak: rank 0: cu",
    ]
    fields = as_dict(ranks)
    assert list(fields) == ["passed", "limits", "ranks"]
    assert list(fields["limits"][0]) == ["limit", "passed", "worst_rank", "reasons", "facts"]
    assert (fields["passed"], fields["limits"][0]["worst_rank"]) == (False, 1)
    assert [(one["rank"], one["path"], one["passed"]) for one in fields["ranks"]] == [
        (0, "run-0.memx", True),
        (1, "run-1.memx", False),
        (2, "run-2.memx", True),
        (3, "run-3.memx", False),
    ]


def test_a_rank_without_a_recording_keeps_no_limit():
    ranks = judge_ranks(run_of(3, 3, world_size=3), Limits(max_peak_bytes=5 * MIB, max_growth_bytes=0))
    assert kept(ranks)[2] is False
    assert [verdict.reasons for verdict in ranks[2].verdicts] == [("there is no recording of it",)] * 2


@pytest.mark.parametrize("ranks", [[None, None], [1, 1], [None, 1]], ids=["unsaid", "twice", "half"])
def test_recordings_that_do_not_tell_their_ranks_apart_are_numbered_in_order(ranks):
    found = judge_ranks(run_of(3, 9, ranks=ranks), Limits(max_peak_bytes=5 * MIB))
    assert [(one.rank, one.is_kept) for one in found] == [(0, True), (1, False)]


def test_each_rank_is_judged_against_the_same_rank_of_the_baseline():
    base = {one.rank: one.summary for one in run_of(3, 9)}
    assert kept(judge_ranks(run_of(3, 9), Limits(), base)) == {0: True, 1: True}
    assert kept(judge_ranks(run_of(9, 3), Limits(), base)) == {0: False, 1: True}
    assert kept(judge_ranks(run_of(3, 9, 1), Limits(), base)) == {0: True, 1: True, 2: False}
    assert kept(judge_ranks(run_of(3), Limits(), base)) == {0: True, 1: False}


def test_a_device_is_judged_on_the_ranks_that_have_it():
    ranks = [*run_of(3, world_size=2), *run_of(9, device=("cuda", 1), ranks=[1])]
    limits = {"max_peak_bytes": 5 * MIB}
    assert kept(judge_ranks(ranks, Limits(**limits, devices=("cuda:0",)))) == {0: True}
    assert kept(judge_ranks(ranks, Limits(**limits, devices=("cuda:1",)))) == {1: False}
    assert kept(judge_ranks(ranks, Limits(**limits, devices=("cuda:0", "cuda:1")))) == {0: True, 1: False}
    assert kept(judge_ranks(ranks, Limits(**limits, devices=("xpu:0",)))) == {0: False, 1: False}


def test_of_many_ranks_the_text_lists_the_worst_and_counts_the_rest():
    ranks = judge_ranks(run_of(*range(1, 41)), Limits(max_peak_bytes=20 * MIB))
    lines = as_text(ranks).splitlines()
    assert len(lines) == LISTED + 1
    assert lines[0].startswith("FAIL  max-peak: rank 39, the worst of 40: ")
    assert lines[-1] == "FAIL  max-peak: 30 more ranks; 10 of them do not keep it"
    fine = as_text(judge_ranks(run_of(*range(1, 41)), Limits(max_peak_bytes=40 * MIB)))
    assert fine.splitlines()[-1] == "ok    max-peak: 30 more ranks; all of them keep it"


def test_each_rank_of_a_recording_is_summed_up_as_if_it_was_alone(tmp_path):
    def alone(rank, size):
        run = Run("cuda", index=0, rank=rank, world_size=2)
        for _ in range(5):
            run.allocate(size, module="head").end_step()
        return run

    paths = [alone(rank, 8 + rank).save(tmp_path / f"{rank}.memx") for rank in range(2)]
    with pipeline.merge(paths) as both:
        fold = RankSummaries(both.info, both.tables)
        for batch in both.batches():
            fold.add(batch)
        found = fold.result(both.end())
    for rank in range(2):
        own = alone(rank, 8 + rank).summary()
        assert (found[rank].devices.keys(), found[rank].growth) == (own.devices.keys(), own.growth)
        assert found[rank].devices["cuda:0"].allocated == own.devices["cuda:0"].allocated
        assert found[rank].steps == 5


def test_a_recording_that_says_no_rank_is_of_one():
    run = Run().allocate(5)
    fold = RankSummaries(run.info, run.tables)
    assert list(fold.result(RecordingEnd())) == [None], "nothing is known of an empty one"
    fold.add(run.batch())
    assert list(fold.result(RecordingEnd())[None].devices) == ["cpu"]
