"""`memexport check`: fails if recordings take more than they may."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memexport.analysis.text import printable
from memexport.analysis.tolerance import Tolerance
from memexport.cli.inputs import for_each, opened
from memexport.cli.progress import progress_bar
from memexport.cli.sizes import Allowance, Size, Slope
from memexport.cli.terminal import Answers
from memexport.errors import MemexportError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memexport.analysis.junit import Judged
    from memexport.analysis.limits import Verdict
    from memexport.analysis.summary import Summary


@click.command("check")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path())
@click.option("--max-peak", metavar="SIZE", type=Size(), help="What may be allocated at most: 12GiB.")
@click.option(
    "--max-growth",
    metavar="SLOPE",
    type=Slope(),
    help="How much more may be live after each step: 1MiB/step. Needs four steps.",
)
@click.option(
    "--baseline", metavar="FILE", type=click.Path(), help="A recording whose peaks may not be exceeded."
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
    junit: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Exit with 1 if a recording INPUT takes more than it may, and say why.

    Every device is judged by every limit. A limit that cannot be judged, for want of a counter or of steps,
    is not kept.
    """
    from memexport.analysis.limits import Limits, judge

    if (max_peak, max_growth, baseline) == (None, None, None):
        raise UsageError("there is no limit to check", hint="--max-peak, --max-growth or --baseline")
    if tolerance is not None and baseline is None:
        raise UsageError("--tolerance is by how much a --baseline may be exceeded")
    report = None if junit is None else _Report(junit, overwrite=force)
    base = None if baseline is None else _summary(baseline)
    limits = Limits(max_peak, max_growth, base, tolerance or Tolerance(), devices)
    answers = Answers(as_json=as_json, several=len(inputs) > 1)
    judged: list[Judged] = []

    def check(name: str) -> None:
        summary = _read(name, judged)
        verdicts = judge(summary, limits)
        judged.append(_judged(name, verdicts))
        answers.add(name, lambda: _as_dict(verdicts), lambda: _as_text(verdicts))

    try:
        exit_code = for_each(inputs, check)
        answers.finish()
    finally:
        if report is not None:
            report.write(judged)
    is_kept = all(verdict.is_kept for one in judged for verdict in one.verdicts)
    sys.exit(exit_code or (0 if is_kept else 1))


def _summary(name: str) -> Summary:
    with opened(name) as recording, progress_bar(f"Reading {recording.name}") as progress:
        return recording.summary(progress)


def _read(name: str, judged: list[Judged]) -> Summary:
    """What a report says of an INPUT that cannot be read must not be nothing."""
    from memexport.analysis.junit import Judged

    try:
        return _summary(name)
    except MemexportError as error:
        judged.append(Judged(name, error=str(error)))
        raise


def _judged(name: str, verdicts: tuple[Verdict, ...]) -> Judged:
    from memexport.analysis.junit import Judged

    return Judged(name, verdicts)


def _as_dict(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    limits = [
        {
            "limit": verdict.limit,
            "passed": verdict.is_kept,
            "reasons": list(verdict.reasons),
            "facts": list(verdict.facts),
        }
        for verdict in verdicts
    ]
    return {"passed": all(verdict.is_kept for verdict in verdicts), "limits": limits}


def _as_text(verdicts: Sequence[Verdict]) -> str:
    lines = []
    for verdict in verdicts:
        lines += [f"FAIL  {verdict.limit}: {printable(reason)}" for reason in verdict.reasons]
        lines += [f"ok    {verdict.limit}: {printable(fact)}" for fact in verdict.facts]
    return "\n".join(lines)


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
