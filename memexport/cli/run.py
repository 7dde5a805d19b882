"""`memexport run`: track a script without changing it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from memexport import registry
from memexport.cli.terminal import say_written
from memexport.errors import UsageError


@click.command(
    "run",
    # What stands after SCRIPT is the script's, also where it looks like an option of ours.
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    type=click.Path(),
    help="A file to write, in the format that its suffix says; may be given several times."
    " Default: memexport-SCRIPT.PID.memx.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as after python -m.")
@click.argument("target", metavar="SCRIPT [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(outputs: tuple[str, ...], force: bool, module: bool, target: tuple[str, ...]) -> None:
    """Run a Python SCRIPT and record the memory of every model in it.

    Arguments, exit code and tracebacks are those of plain python.
    """
    written = list(outputs) or [default_output(target[0], module=module)]
    for output in written:
        # A wrong suffix must not come to light when the training is over.
        registry.exporter_for(output)
    before = {output: _state(output) for output in written}
    exit_code = launch(list(target), module=module, outputs=written, overwrite=force)
    for output in written:
        if _state(output) != before[output]:
            say_written(Path(output))
    sys.exit(exit_code)


def launch(argv: list[str], *, module: bool, outputs: list[str], overwrite: bool) -> int:
    """Run the target under the tracker, in this process; its exit code.

    Raises:
        UsageError: torch is not installed.
    """
    with torch_required():
        from memexport.tracker import launcher
    return launcher.run(argv, as_module=module, outputs=outputs, overwrite=overwrite)


@contextlib.contextmanager
def torch_required() -> Iterator[None]:
    """Around the imports of what needs torch.

    Raises:
        UsageError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("tracking needs torch", hint="pip install 'memexport[torch]'") from error


def default_output(target: str, *, module: bool) -> str:
    """In the working directory, with the process id: a second run must not stop at the file of the first."""
    stem = target if module else Path(target).stem
    return f"memexport-{stem}.{os.getpid()}.memx"


def _state(path: str) -> tuple[int, int] | None:
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino
