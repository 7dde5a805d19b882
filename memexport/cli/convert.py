"""`memexport convert`: any input in any output format."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, BinaryIO

import click

from memexport.cli.inputs import for_each, opened_together
from memexport.cli.outputs import STDOUT, Job, make_folder, planned
from memexport.cli.progress import progress_bar
from memexport.cli.push import Duration, Push, push
from memexport.cli.selecting import selection_options
from memexport.cli.sizes import Size
from memexport.cli.terminal import say_written, warn
from memexport.errors import UsageError

if TYPE_CHECKING:
    from memexport.analysis.selection import Selection


@click.command("convert")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file, a folder (DIR/), or - for stdout. Default: INPUT's name, new suffix.",
)
@click.option(
    "--to", metavar="FORMAT", help="The format to write. Default: what OUTPUT's suffix says, or perfetto."
)
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@selection_options
@click.option(
    "--lifetimes",
    metavar="SIZE",
    type=Size(),
    help="Perfetto: draw the lifetime of every tensor of at least SIZE (0: of all). Default: the large ones.",
)
@click.option(
    "--step-peaks",
    is_flag=True,
    help="Perfetto: a flamegraph of each step's peak too; the viewer then opens the first step's.",
)
@click.option("--endpoint", metavar="URL", help="--to otlp: the collector; see memexport push.")
@click.option(
    "--interval",
    "interval_ns",
    metavar="TIME",
    type=Duration(),
    default="1s",
    show_default=True,
    help="--to otlp: the time between two points of a series.",
)
@click.option("--no-compress", is_flag=True, help="Perfetto: write the trace uncompressed.")
def command(
    inputs: tuple[str, ...],
    output: str | None,
    to: str | None,
    force: bool,
    lifetimes: int | None,
    step_peaks: bool,
    endpoint: str | None,
    interval_ns: int,
    no_compress: bool,
    selection: Selection,
) -> None:
    """Write recordings in another format: each INPUT beside itself, or in the folder that -o names.

    Several INPUTs and a file after -o: they are the ranks of one run, and merged by time.

    What INPUT is, its content says; - is stdin. `memexport formats` lists what can be read and written.
    INPUT and OUTPUT may be URLs (s3://bucket/run.memx) if fsspec is installed.

    --to names the format, so a range of events goes --from one --until another.
    """
    from memexport import pipeline

    if to == "otlp" and output is None:
        sys.exit(_push(inputs, endpoint, interval_ns, selection))
    options: dict[str, object] = {}
    if lifetimes is not None:
        options["lifetimes_bytes"] = lifetimes
    if step_peaks:
        options["step_peaks"] = True
    if no_compress:
        options["compress"] = False
    jobs = planned(inputs, output, to)
    for job in jobs:
        # Before any input is opened: wrong usage is said once, and nothing is fetched for it.
        pipeline.exporter_to(_target(job), to=job.to, options=options)
    make_folder(output)
    if len(jobs) == 1:
        return _convert(jobs[0], force, options, selection)
    of = {job.sources[0]: job for job in jobs}
    sys.exit(for_each(inputs, lambda source: _convert(of[source], force, options, selection)))


def _push(inputs: tuple[str, ...], endpoint: str | None, interval_ns: int, selection: Selection) -> int:
    """Metrics have no file; the exit code."""
    if selection.until is not None or selection.devices or selection.min_bytes:
        raise UsageError("--to otlp takes no part of a recording but --from, which resumes")
    what = Push(
        endpoint, interval_ns=interval_ns, begin=None if selection.begin is None else str(selection.begin)
    )
    what.exporter()  # wrong usage is said before any input is opened
    return for_each(inputs, lambda name: push(name, what))


def _convert(job: Job, force: bool, options: dict[str, object], selection: Selection) -> None:
    from memexport import pipeline

    with opened_together(job.sources) as whole, progress_bar(f"Converting {whole.name}") as progress:
        part, target = whole.select(selection), _target(job)
        end = pipeline.convert(part, target, to=job.to, overwrite=force, options=options, progress=progress)
    warn(end.warnings)
    if job.output != STDOUT:
        say_written(job.output, job.to)


def _target(job: Job) -> str | BinaryIO:
    return sys.stdout.buffer if job.output == STDOUT else job.output
