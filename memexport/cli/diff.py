"""`memexport diff`: what one recording has more or less of than another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from memexport.analysis.tolerance import Tolerance
from memexport.cli.files import InputFile
from memexport.cli.inputs import STDIN, opened
from memexport.cli.progress import progress_bar
from memexport.cli.sizes import Allowance
from memexport.cli.terminal import Answers, page_style, say, say_written
from memexport.errors import UsageError

if TYPE_CHECKING:
    from memexport.analysis.diff import Diff
    from memexport.pipeline import Recording

_PICTURES: Final = ("perfetto", "chrome")


@click.command("diff")
@click.argument("a", metavar="A", type=InputFile())
@click.argument("b", metavar="B", type=InputFile())
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; scripts may depend on its keys."
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print GitHub Markdown.")
@click.option(
    "--fail-on-increase",
    "tolerance",
    metavar="[TOLERANCE]",
    type=Allowance(),
    is_flag=False,
    flag_value="0%",
    help="Exit with 1 if a device peaks higher in B, by more than TOLERANCE (2%, 10MiB) if there is one."
    " Stands after A and B.",
)
@click.option(
    "-o", "--output", type=click.Path(), help="A trace (.pftrace, .json) with both on one time line."
)
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
def command(
    a: str,
    b: str,
    as_json: bool,
    as_markdown: bool,
    tolerance: Tolerance | None,
    output: str | None,
    force: bool,
) -> None:
    """Say what recording B has more or less of than A: at their peaks, and in the steps that both have.

    Devices are matched by name. The changes by category, module and operator add up to the gap between the
    peaks.
    """
    if as_json and as_markdown:
        raise UsageError("--markdown and --json exclude each other")
    if a == b == STDIN:
        raise UsageError("stdin can be read once only")
    _check_output(output)
    with opened(a) as first, opened(b) as second:
        found = _compared(first, second)
        answers = Answers(as_json=as_json, several=False)
        answers.add(a, found.to_dict, found.to_markdown if as_markdown else lambda: _page(found))
        answers.finish()
        if output is not None:
            _draw(first, second, output, force)
    increases = () if tolerance is None else found.increases(tolerance)
    for sentence in increases:
        say(f"memexport: {sentence}")
    sys.exit(1 if increases else 0)


def _compared(first: Recording, second: Recording) -> Diff:
    from memexport import comparison

    with progress_bar(f"Comparing {first.name} and {second.name}") as progress:
        return comparison.diff(first, second, progress=progress)


def _page(found: Diff) -> str:
    from memexport.analysis.diff_report import render_text

    return render_text(found, page_style())


def _check_output(output: str | None) -> None:
    from memexport import registry

    if output == STDIN:
        raise UsageError("the picture is a file, stdout has the answer", hint="-o diff.pftrace")
    if output is not None and registry.exporter_for(output).name not in _PICTURES:
        raise UsageError(
            f"{output!r} is no picture: two recordings on one time line are drawn, not kept",
            hint="-o diff.pftrace",
        )


def _draw(first: Recording, second: Recording, output: str, force: bool) -> None:
    from memexport import comparison, pipeline

    both = comparison.side_by_side(first, second)
    with progress_bar(f"Writing {output}") as progress:
        pipeline.convert(both, output, overwrite=force, progress=progress)
    say_written(output)
