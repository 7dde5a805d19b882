"""`memexport summary`: what used the memory, and when it peaked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from memexport.cli.inputs import for_each, opened_together
from memexport.cli.progress import progress_bar
from memexport.cli.selecting import selection_options
from memexport.cli.terminal import Answers

if TYPE_CHECKING:
    from memexport.analysis.selection import Selection


@click.command("summary")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object, of several INPUTs an array; scripts may depend on its keys.",
)
@click.option("--merge", is_flag=True, help="The INPUTs are the ranks of one run: sum them up as one.")
@selection_options
def command(inputs: tuple[str, ...], as_json: bool, merge: bool, selection: Selection) -> None:
    """Say what used the memory in the recordings INPUT, and when it peaked.

    An INPUT may be a URL, or - for stdin.
    """
    answers = Answers(as_json=as_json, several=len(inputs) > 1 and not merge)

    def summarize(*names: str) -> None:
        with opened_together(names) as whole, progress_bar(f"Reading {whole.name}") as progress:
            summary = whole.select(selection).summary(progress)
        answers.add(names[0], summary.to_dict, summary.__str__)

    exit_code = 0
    if merge:
        summarize(*inputs)
    else:
        exit_code = for_each(inputs, summarize)
    answers.finish()
    sys.exit(exit_code)
