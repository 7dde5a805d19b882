"""`memexport demo`: a small training run, from model to trace."""

from __future__ import annotations

from pathlib import Path

import click

from memexport.cli.terminal import answer, say_written
from memexport.errors import UsageError


@click.command("demo")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace the files of an earlier demo.")
def command(directory: Path, force: bool) -> None:
    """Train a small transformer under the tracker; write demo.memx and demo.pftrace to DIRECTORY.

    It runs on the CPU and takes a few seconds. DIRECTORY is the working directory by default.
    """
    try:
        from memexport import demo
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("the demo needs torch", hint="pip install 'memexport[torch]'") from error
    from memexport import pipeline

    written = demo.run(directory, overwrite=force)
    with pipeline.open(written[0]) as recording:
        answer(str(recording.summary()))
    for path in written:
        say_written(path)
