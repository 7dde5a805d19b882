"""`memexport plot`: a recording as a picture, or as a page to explore."""

from __future__ import annotations

import posixpath
import sys
from typing import TYPE_CHECKING, Final

import click

from memexport.cli.files import InputFile
from memexport.cli.inputs import STDIN, expanded, for_each, opened_together
from memexport.cli.outputs import STDOUT, Job, make_folder, planned
from memexport.cli.progress import progress_bar
from memexport.cli.selecting import selection_options
from memexport.cli.terminal import say_written, warn
from memexport.errors import UsageError

if TYPE_CHECKING:
    from memexport.analysis.selection import Selection

_FORMATS: Final = ("html", "png", "svg")
_LARGEST: Final = 10_000


@click.command("plot")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=InputFile(), callback=expanded)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file (.html, .png, .svg), a folder (DIR/), or - for stdout. Default: INPUT's name, .html.",
)
@click.option("--to", type=click.Choice(_FORMATS), help="What to write. Default: what OUTPUT's suffix says.")
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@click.option(
    "--theme",
    type=click.Choice(("auto", "light", "dark")),
    default="auto",
    show_default=True,
    help="The colours; auto: of a page what its reader's system prefers, of a picture light.",
)
@click.option("--width", type=click.IntRange(400, _LARGEST), help="Pictures: pixels. Default: 1200.")
@click.option(
    "--height", type=click.IntRange(300, _LARGEST), help="Pictures: pixels. Default: what the devices need."
)
@selection_options
def command(
    inputs: tuple[str, ...],
    output: str | None,
    to: str | None,
    force: bool,
    theme: str,
    width: int | None,
    height: int | None,
    selection: Selection,
) -> None:
    """Draw what a recording's devices held over time: by category, with its peak, steps and phases.

    A page (.html) opens in any browser, without a network: zoom, see what was live at any moment and which
    modules made the peak. A picture (.png, .svg) needs matplotlib (pip install 'memexport[plot]').

    Several INPUTs and a file after -o: they are the ranks of one run, and merged by time.
    """
    to = to or ("html" if output is None or output.endswith("/") else None)
    jobs = planned(inputs, output, to)
    options: dict[str, object] = {"theme": theme}
    options |= {name: size for name, size in (("width", width), ("height", height)) if size is not None}
    for job in jobs:
        _check(job, options)
    make_folder(output)
    of = {job.sources[0]: job for job in jobs}
    if len(jobs) == 1:
        return _plot(jobs[0], force, options, selection)
    sys.exit(for_each(inputs, lambda source: _plot(of[source], force, options, selection)))


def _check(job: Job, options: dict[str, object]) -> None:
    """Before any input is opened, so that nothing is fetched for wrong usage."""
    from memexport import pipeline, registry

    found = registry.exporter_for(job.output, job.to)
    if found.name not in _FORMATS:
        raise UsageError(
            f"{job.output!r} is no picture: {found.name} is what memexport convert writes",
            hint="names that end in .html, .png or .svg are",
        )
    if found.name == "html" and options.keys() - {"theme"}:
        raise UsageError("--width and --height are for pictures: a page is as wide as its window")
    if job.output != STDOUT:
        pipeline.exporter_to(job.output, to=job.to, options=options)


def _plot(job: Job, force: bool, options: dict[str, object], selection: Selection) -> None:
    from memexport import pipeline

    target = sys.stdout.buffer if job.output == STDOUT else job.output
    with opened_together(job.sources) as whole, progress_bar(f"Reading {whole.name}") as progress:
        titled = options if STDIN in job.sources else {**options, "title": posixpath.basename(whole.name)}
        part = whole.select(selection)
        end = pipeline.convert(part, target, to=job.to, overwrite=force, options=titled, progress=progress)
    warn(end.warnings)
    if job.output != STDOUT:
        say_written(job.output, job.to)
