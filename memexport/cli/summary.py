"""`memexport summary`: what used the memory, and when it peaked."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from memexport.cli.files import InputFile
from memexport.cli.inputs import expanded, for_each, opened_together
from memexport.cli.progress import progress_bar
from memexport.cli.selecting import selection_options
from memexport.cli.terminal import Answers, page_style
from memexport.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memexport.analysis.module_memory import ModuleMemory
    from memexport.analysis.selection import Selection
    from memexport.analysis.summary import Summary


@click.command("summary")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=InputFile(), callback=expanded)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object, of several INPUTs an array; scripts may depend on its keys.",
)
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print GitHub Markdown, for an issue or a pull request."
)
@click.option("--merge", is_flag=True, help="The INPUTs are the ranks of one run: sum them up as one.")
@click.option("--modules", is_flag=True, help="Also what each module held, made and peaked at, by phase.")
@selection_options
def command(
    inputs: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
    merge: bool,
    modules: bool,
    selection: Selection,
) -> None:
    """Say what used the memory in the recordings INPUT, when it peaked, what grew, and what to try next.

    An INPUT may be a URL, or - for stdin.
    """
    if as_markdown and (as_json or modules):
        raise UsageError(f"--markdown and --{'json' if as_json else 'modules'} exclude each other")
    several = len(inputs) > 1 and not merge
    answers = Answers(as_json=as_json, as_markdown=as_markdown, several=several)

    def summarize(*names: str) -> None:
        with opened_together(names) as whole, progress_bar(f"Reading {whole.name}") as progress:
            part = whole.select(selection)
            summary = part.summary(progress)
            held = part.modules() if modules else None
        to_text = summary.to_markdown if as_markdown else partial(_as_text, summary, held)
        answers.add(names[0], partial(_as_dict, summary, held), to_text)

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
    from memexport.analysis.report import render_text

    style = page_style()
    text = render_text(summary, style)
    return text if modules is None else f"{text}\n\n{render_modules(modules, style)}"
