"""`memexport convert`: any input in any output format."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from memexport.cli.conversion import Conversion, Written, target, write
from memexport.cli.files import InputFile, complete_format
from memexport.cli.inputs import STDIN, expanded, for_each, opened_together
from memexport.cli.outputs import STDOUT, make_folder, names_folder, planned
from memexport.cli.progress import progress_bar
from memexport.cli.push import Duration, Push, push
from memexport.cli.selecting import selection_options
from memexport.cli.sizes import Size
from memexport.cli.terminal import say_written, warn
from memexport.errors import UsageError

if TYPE_CHECKING:
    from memexport.analysis.selection import Selection


@click.command("convert")
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True, type=InputFile(), callback=expanded)
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="A file, a folder (DIR/), or - for stdout. Default: INPUT's name, new suffix.",
)
@click.option(
    "--to",
    metavar="FORMAT",
    shell_complete=complete_format,
    help="The format to write. Default: what OUTPUT's suffix says, or perfetto.",
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
@click.option(
    "--by-rank",
    is_flag=True,
    help="Parquet: in DIR/, a folder for each rank (rank=3/), which readers take for a column.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "dask"]),
    default="local",
    show_default=True,
    help="Where the work is done: here, or as one task per output on a Dask cluster.",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="--engine dask: the cluster (tcp://host:8786). Default: one of this machine's cores.",
)
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
    by_rank: bool,
    engine: str,
    scheduler: str | None,
    selection: Selection,
) -> None:
    """Write recordings in another format: each INPUT beside itself, or in the folder that -o names.

    Several INPUTs and a file after -o: they are the ranks of one run, and merged by time. For a dataset of
    many ranks: --to parquet --by-rank -o DIR/.

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
    if by_rank:
        to = _format_by_rank(output, to)
        options["partitioned"] = True
    _check_engine(engine, scheduler, inputs, output)
    jobs = planned(inputs, output, to)
    for job in jobs:
        # Before any input is opened: wrong usage is said once, and nothing is fetched for it.
        pipeline.exporter_to(target(job.output), to=job.to, options=options)
    make_folder(output)
    conversions = [Conversion(job, force, options, selection, by_rank) for job in jobs]
    if engine == "dask":
        return _convert_on_dask(conversions, scheduler)
    if len(jobs) == 1:
        return _convert(conversions[0])
    of = {conversion.job.sources[0]: conversion for conversion in conversions}
    sys.exit(for_each(inputs, lambda source: _convert(of[source])))


def _push(inputs: tuple[str, ...], endpoint: str | None, interval_ns: int, selection: Selection) -> int:
    """Metrics have no file; the exit code."""
    if selection.until is not None or selection.devices or selection.min_bytes:
        raise UsageError("--to otlp takes no part of a recording but --from, which resumes")
    what = Push(
        endpoint, interval_ns=interval_ns, begin=None if selection.begin is None else str(selection.begin)
    )
    what.exporter()  # wrong usage is said before any input is opened
    return for_each(inputs, lambda name: push(name, what))


def _format_by_rank(output: str | None, to: str | None) -> str:
    """The format's name."""
    if to not in (None, "parquet"):
        raise UsageError(f"--by-rank is of Parquet, not of {to}")
    if output is None or not names_folder(output):
        raise UsageError("--by-rank writes a folder of folders", hint="-o DIR/ names it")
    return "parquet"


def _check_engine(engine: str, scheduler: str | None, inputs: Sequence[str], output: str | None) -> None:
    if engine != "dask" and scheduler is not None:
        raise UsageError("--scheduler is of a Dask cluster", hint="--engine dask")
    if engine == "dask" and (STDIN in inputs or output == STDOUT):
        raise UsageError("a cluster has neither stdin nor stdout", hint="name files or URLs")


def _convert(conversion: Conversion) -> None:
    sources = conversion.job.sources
    with opened_together(sources) as whole, progress_bar(f"Converting {whole.name}") as progress:
        written = write(conversion, whole, progress)
    _tell(written, conversion.job.to)


def _convert_on_dask(conversions: Sequence[Conversion], scheduler: str | None) -> None:
    from memexport.cli.dask_engine import on_dask

    with progress_bar(f"Converting on Dask, to {len(conversions)} outputs", "done") as progress:
        outcomes = on_dask(conversions, scheduler, progress)
    jobs = [conversion.job for conversion in conversions]
    of = {job.sources[0]: (job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)}

    def tell(source: str) -> None:
        job, outcome = of[source]
        _tell(outcome(), job.to)

    sys.exit(for_each(list(of), tell))


def _tell(written: Written, to: str | None) -> None:
    warn(written.warnings)
    if written.output != STDOUT:
        say_written(written.output, to)
