"""`memexport convert`: any input in any output format."""

from __future__ import annotations

from pathlib import Path

import click

from memexport import registry
from memexport.cli.progress import progress_bar
from memexport.cli.sizes import Size
from memexport.cli.terminal import say_written, warn
from memexport.errors import UsageError


@click.command("convert")
@click.argument("inputs", metavar="INPUT", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file to write. Default: INPUT's name, new suffix.",
)
@click.option(
    "--to", metavar="FORMAT", help="The format to write. Default: what OUTPUT's suffix says, or perfetto."
)
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@click.option(
    "--lifetimes",
    metavar="SIZE",
    type=Size(),
    help="Perfetto: draw the lifetime of every tensor of at least SIZE (0: of all). Default: the large ones.",
)
@click.option("--no-compress", is_flag=True, help="Perfetto: write the trace uncompressed.")
def command(
    inputs: tuple[Path, ...],
    output: Path | None,
    to: str | None,
    force: bool,
    lifetimes: int | None,
    no_compress: bool,
) -> None:
    """Write the recording INPUT in another format.

    What INPUT is, its content says. `memexport formats` lists what can be read and written.
    """
    from memexport import pipeline

    if len(inputs) > 1:
        raise UsageError("convert takes one INPUT", hint="the file to write goes after -o")
    source = inputs[0]
    if output is None:
        to = to or "perfetto"
        output = default_output(source, to)
    options: dict[str, object] = {}
    if lifetimes is not None:
        options["lifetimes_bytes"] = lifetimes
    if no_compress:
        options["compress"] = False
    with progress_bar(f"Converting {source.name}") as progress:
        end = pipeline.convert(source, output, to=to, overwrite=force, options=options, progress=progress)
    warn(end.warnings)
    say_written(output, to)


def default_output(source: Path, to: str) -> Path:
    """Beside the input, under its name, with the format's suffix instead of the one that it is known by.

    Raises:
        UsageError: there is no such format.
    """
    suffix = registry.exporter_for("", to).suffixes[0]
    known = {s for f in (*registry.sources(), *registry.exporters()) for s in f.suffixes}
    fitting = [s for s in known if source.name.lower().endswith(s) and len(s) < len(source.name)]
    stem = source.name[: -len(max(fitting, key=len))] if fitting else source.name
    return source.with_name(stem + suffix)
