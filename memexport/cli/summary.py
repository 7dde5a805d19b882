"""`memexport summary`: what used the memory, and when it peaked."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from memexport.cli.inputs import for_each, opened_together
from memexport.cli.progress import progress_bar
from memexport.cli.selecting import selection_options
from memexport.cli.terminal import Answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memexport.analysis.module_memory import ModuleMemory
    from memexport.analysis.selection import Selection
    from memexport.analysis.summary import Summary


@click.command("summary")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object, of several INPUTs an array; scripts may depend on its keys.",
)
@click.option("--merge", is_flag=True, help="The INPUTs are the ranks of one run: sum them up as one.")
@click.option("--modules", is_flag=True, help="Also what each module held, made and peaked at, by phase.")
@selection_options
def command(inputs: tuple[str, ...], as_json: bool, merge: bool, modules: bool, selection: Selection) -> None:
    """Say what used the memory in the recordings INPUT, and when it peaked.

    An INPUT may be a URL, or - for stdin.
    """
    answers = Answers(as_json=as_json, several=len(inputs) > 1 and not merge)

    def summarize(*names: str) -> None:
        with opened_together(names) as whole, progress_bar(f"Reading {whole.name}") as progress:
            part = whole.select(selection)
            summary = part.summary(progress)
            held = part.modules() if modules else None
        answers.add(names[0], partial(_as_dict, summary, held), partial(_as_text, summary, held))

    exit_code = 0
    if merge:
        summarize(*inputs)
    else:
        exit_code = for_each(inputs, summarize)
    answers.finish()
    sys.exit(exit_code)


def _as_dict(summary: Summary, modules: Sequence[ModuleMemory] | None) -> dict[str, Any]:
    """The public JSON; "modules" only where they were asked for."""
    from memexport.analysis.module_report import modules_as_dicts

    fields = summary.to_dict()
    return fields if modules is None else {**fields, "modules": modules_as_dicts(modules)}


def _as_text(summary: Summary, modules: Sequence[ModuleMemory] | None) -> str:
    from memexport.analysis.module_report import render_modules

    return str(summary) if modules is None else f"{summary}\n\n{render_modules(modules)}"
