"""`memexport check`: fails if recordings take more than they may."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memexport.analysis.tolerance import Tolerance
from memexport.cli.files import InputFile
from memexport.cli.inputs import STDIN, expanded, for_each, opened
from memexport.cli.progress import progress_bar
from memexport.cli.sizes import Allowance, Size, Slope
from memexport.cli.terminal import Answers
from memexport.errors import MemexportError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memexport.analysis.junit import Judged
    from memexport.analysis.limits import Limits, Verdict
    from memexport.analysis.rank_limits import RankRecording
    from memexport.analysis.summary import Summary


@click.command("check")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=InputFile(), callback=expanded)
@click.option("--max-peak", metavar="SIZE", type=Size(), help="What may be allocated at most: 12GiB.")
@click.option(
    "--max-growth",
    metavar="SLOPE",
    type=Slope(),
    help="How much more may be live after each step: 1MiB/step. Needs four steps.",
)
@click.option(
    "--baseline", metavar="FILE", type=InputFile(), help="A recording whose peaks may not be exceeded."
)
@click.option(
    "--tolerance",
    metavar="TOLERANCE",
    type=Allowance(),
    help="By how much they may be: 2%, 10MiB. Default: 0.",
)
@click.option(
    "--device",
    "devices",
    metavar="NAME",
    multiple=True,
    help="Judge only this device (cuda:0); may be given several times. Default: all.",
)
@click.option(
    "--merge", is_flag=True, help="The INPUTs are the ranks of one run: judge each, and name the worst."
)
@click.option("--junit", metavar="FILE", type=click.Path(), help="Also write a JUnit report there.")
@click.option("--force", is_flag=True, help="Replace the JUnit report if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, of several INPUTs an array.")
def command(
    inputs: tuple[str, ...],
    max_peak: int | None,
    max_growth: int | None,
    baseline: str | None,
    tolerance: Tolerance | None,
    devices: tuple[str, ...],
    merge: bool,
    junit: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Exit with 1 if a recording INPUT takes more than it may, and say why.

    Every device is judged by every limit. A limit that cannot be judged, for want of a counter, of steps or,
    with --merge, of a rank, is not kept.
    """
    from memexport.analysis.limits import Limits

    if (max_peak, max_growth, baseline) == (None, None, None):
        raise UsageError("there is no limit to check", hint="--max-peak, --max-growth or --baseline")
    if junit == STDIN:
        raise UsageError("the JUnit report is a file, stdout has the answer", hint="--junit junit.xml")
    if [*inputs, baseline].count(STDIN) > 1:
        raise UsageError("stdin can be read once only")
    if tolerance is not None and baseline is None:
        raise UsageError("--tolerance is by how much a --baseline may be exceeded")
    report = None if junit is None else _Report(junit, overwrite=force)
    limits = Limits(max_peak, max_growth, None, tolerance or Tolerance(), devices)
    judged: list[Judged] = []
    judge_all = _judge_ranks if merge else _judge_each
    try:
        exit_code = judge_all(inputs, limits, baseline, judged, as_json)
    finally:
        if report is not None:
            report.write(judged)
    is_kept = all(verdict.is_kept for one in judged for verdict in one.verdicts)
    sys.exit(exit_code or (0 if is_kept else 1))


def _judge_each(
    inputs: Sequence[str], limits: Limits, baseline: str | None, judged: list[Judged], as_json: bool
) -> int:
    """Each INPUT by itself; the exit code of the first that cannot be read, else 0."""
    from memexport.analysis.junit import Judged
    from memexport.analysis.limits import judge

    if baseline is not None:
        limits = dataclasses.replace(limits, baseline=_summary(baseline))
    answers = Answers(as_json=as_json, several=len(inputs) > 1)

    def check(name: str) -> None:
        with _noted(name, judged):
            verdicts = judge(_summary(name), limits)
        judged.append(Judged(name, verdicts))
        answers.add(name, lambda: _as_dict(verdicts), lambda: _as_text(verdicts))

    exit_code = for_each(inputs, check)
    answers.finish()
    return exit_code


def _judge_ranks(
    inputs: Sequence[str], limits: Limits, baseline: str | None, judged: list[Judged], as_json: bool
) -> int:
    """Each rank of the run that the INPUTs are of; the exit code of the first that cannot be read, else 0."""
    from memexport.analysis import rank_limits
    from memexport.analysis.junit import Judged

    base = None if baseline is None else {rank or 0: found for rank, _, found in _by_rank(baseline)}
    recordings: list[RankRecording] = []

    def read(name: str) -> None:
        with _noted(name, judged):
            found = _by_rank(name)
        recordings.extend(rank_limits.RankRecording(name, *one) for one in found)

    exit_code = for_each(inputs, read)
    if not recordings:
        return exit_code
    ranks = rank_limits.judge_ranks(recordings, limits, base)
    judged += [Judged(f"{one.name or ''} rank {one.rank}".strip(), one.verdicts) for one in ranks]
    answers = Answers(as_json=as_json, several=False)
    answers.add("", lambda: rank_limits.as_dict(ranks), lambda: rank_limits.as_text(ranks))
    answers.finish()
    return exit_code


def _summary(name: str) -> Summary:
    with opened(name) as recording, progress_bar(f"Reading {recording.name}") as progress:
        return recording.summary(progress)


def _by_rank(name: str) -> list[tuple[int | None, int | None, Summary]]:
    """Rank, world size and summary of each rank that the recording has."""
    from memexport.analysis.rank_summaries import RankSummaries

    with opened(name) as recording, progress_bar(f"Reading {recording.name}") as progress:
        fold = RankSummaries(recording.info, recording.tables)
        events = 0
        for batch in recording.batches():
            fold.add(batch)
            events += len(batch)
            if progress is not None:
                progress(events, recording.fraction_read)
        found = fold.result(recording.end())
        return [(rank, recording.info.world_size, summary) for rank, summary in found.items()]


@contextlib.contextmanager
def _noted(name: str, judged: list[Judged]) -> Iterator[None]:
    """What a report says of an INPUT that cannot be read must not be nothing."""
    from memexport.analysis.junit import Judged

    try:
        yield
    except MemexportError as error:
        judged.append(Judged(name, error=str(error)))
        raise


def _as_dict(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    limits = [verdict.to_dict() for verdict in verdicts]
    return {"passed": all(verdict.is_kept for verdict in verdicts), "limits": limits}


def _as_text(verdicts: Sequence[Verdict]) -> str:
    return "\n".join(line for verdict in verdicts for line in verdict.lines())


class _Report:
    """The JUnit report; whether it may be written is found out before anything is read."""

    def __init__(self, path: str, *, overwrite: bool) -> None:
        from memexport.exporters.destination import FileDestination

        self._destination = FileDestination(Path(path), overwrite)
        self._destination.open()

    def write(self, judged: Sequence[Judged]) -> None:
        from memexport.analysis.junit import junit_xml

        self._destination.write(junit_xml(judged))
        self._destination.commit()
