"""`memexport run`: track a script without changing it."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePath

import click

from memexport import remote
from memexport.archive_limit import check_limit
from memexport.cli.files import complete_script
from memexport.cli.sizes import Size
from memexport.cli.step_range import StepRange
from memexport.cli.terminal import say, say_written, warn
from memexport.ranks import escaped, filled, filled_for_one, this_process
from memexport.schedule import Schedule


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
    help="A file to write, in the format that its suffix says; may be given several times. {rank},"
    " {local_rank}, {host} and {pid} are filled in. To a URL, it is uploaded at the end. Default:"
    " memexport-SCRIPT.PID.memx, or nothing with --otlp.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("--shapes", is_flag=True, help="Record dtypes and shapes of every operator's tensors too.")
@click.option("--stacks", is_flag=True, help="Record the Python code that called each operator too.")
@click.option(
    "--capture",
    type=click.Choice(["operators", "allocator"]),
    default="operators",
    show_default=True,
    help="What to take for allocated on the CPU: what operators return, or, slower, all that the allocator"
    " gives, also inside of operators, and on one CUDA device too.",
)
@click.option(
    "--every",
    type=click.IntRange(min=2),
    metavar="N",
    help="Record 1 step in N in detail, beginning with step 0; of the others, when they ended.",
)
@click.option(
    "--window", type=click.IntRange(min=1), metavar="N", help="With --every: N steps one after another."
)
@click.option(
    "--steps",
    type=StepRange(),
    multiple=True,
    help="Record only steps from A up to but without B in detail; may be given several times. A step ends"
    " with a step of the first optimizer.",
)
@click.option(
    "--max-size",
    type=Size(),
    help="How large a .memx file may become (500MiB): it keeps the first and the last of the recording, and"
    " counts what it leaves out.",
)
@click.option(
    "--oom",
    metavar="FOLDER",
    help="If memory runs out, write the last events and who held the memory there. Without -o, nothing else"
    " is recorded, which costs less. Default: what MEMEXPORT_OOM says.",
)
@click.option(
    "--otlp",
    is_flag=True,
    help="Export metrics while it runs, to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, or through"
    " the MeterProvider of the program.",
)
@click.option(
    "--otlp-traces",
    is_flag=True,
    help="As --otlp, and export each training step as a span with its memory.",
)
@click.option(
    "--fake",
    is_flag=True,
    help="Estimate: run on simulated tensors, which take no memory. Nothing is computed.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="With --fake: simulate CUDA too, be it there or not, and what its caching allocator reserves.",
)
@click.option(
    "--world-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --fake: SCRIPT is the first rank of a job of so many.",
)
@click.option(
    "--budget",
    type=Size(),
    help="With --fake: the memory of the device (80GiB). Says where it would run out, and exits with 1.",
)
@click.option(
    "--fake-value",
    type=float,
    default=1.0,
    show_default=True,
    metavar="NUMBER",
    help="With --fake: what loss.item() gives.",
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as after python -m.")
@click.argument(
    "target",
    metavar="SCRIPT [ARGS]...",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=complete_script,
)
def command(
    outputs: tuple[str, ...],
    force: bool,
    shapes: bool,
    stacks: bool,
    capture: str,
    every: int | None,
    window: int | None,
    steps: tuple[tuple[int, int], ...],
    max_size: int | None,
    oom: str | None,
    otlp: bool,
    otlp_traces: bool,
    fake: bool,
    device: str | None,
    world_size: int | None,
    budget: int | None,
    fake_value: float,
    module: bool,
    target: tuple[str, ...],
) -> None:
    """Run a Python SCRIPT and record the memory of every model in it.

    Arguments, exit code and tracebacks are those of plain python.
    """
    from memexport import launcher

    simulation = {"device": device, "world_size": world_size, "budget": budget}
    if not fake and any(value is not None for value in simulation.values()):
        raise click.UsageError("--device, --world-size and --budget need --fake")
    if fake and capture == "allocator":
        raise click.UsageError("--capture allocator asks an allocator, and --fake has none")
    options: dict[str, object] = {"record_shapes": shapes, "record_stacks": stacks, "capture": capture}
    schedule = Schedule.of(every, window, steps or None)
    if schedule is not None and (fake or capture == "allocator"):
        raise click.UsageError("--every and --steps leave out what --fake and --capture allocator need")
    if schedule is not None:
        options |= {"every": every, "window": window, "steps": steps or None}
    if fake:
        options |= {"fake": True, **simulation, "fake_value": fake_value}
    is_possible = not fake and capture != "allocator"
    if oom and not is_possible:
        raise click.UsageError("--oom needs the default capture, without --fake")
    if is_possible:
        oom = oom or os.environ.get("MEMEXPORT_OOM")
    if oom:
        filled(oom, this_process())
        # The script may change the working directory.
        options |= {"on_oom": os.path.join(escaped(os.getcwd()), oom)}  # noqa: PTH109, PTH118 - it has placeholders
    written = [_named(output) for output in outputs]
    if not written and not (otlp or otlp_traces or oom):
        written.append(default_output(target[0], module=module))
    if max_size is not None:
        check_limit(max_size, written)
        options |= {"max_bytes": max_size}
    # The script may change the working directory.
    paths = [remote.fixed(output) for output in written]
    # Behind a URL there is no file, or it is refused.
    before = [_state(path) if force or not remote.is_url(path) else None for path in paths]
    exit_code = launcher.run(
        list(target),
        as_module=module,
        outputs=written,
        overwrite=force,
        otlp=otlp or otlp_traces,
        otlp_traces=otlp_traces,
        options=options,
        report=lambda sentence: say(f"memexport: {sentence}"),
    )
    for path, state in zip(paths, before, strict=True):
        if _state(path) not in (None, state):
            say_written(path)
        elif "torch" not in sys.modules:
            say(f"memexport: {PurePath(path).name} was not written: the program did not import torch")
    sys.exit(exit_code)


def default_output(target: str, *, module: bool) -> str:
    """In the working directory, with the process id: a second run must not stop at the file of the first.

    With the rank too, where there are several.
    """
    stem, process = target if module else Path(target).stem, this_process()
    rank = "-{rank}" if process.has_others else ""
    return filled(f"memexport-{escaped(stem)}{rank}.{{pid}}.memx", process)


def _named(output: str) -> str:
    """The name with its placeholders filled; if it had to get the rank, that is said."""
    name, changed = filled_for_one(output, this_process())
    warn([changed] if changed else [])
    return name


def _state(path: str) -> tuple[int, int] | str | None:
    """What is different when the file has been written; None if there is none, or nothing is known."""
    if remote.is_url(path):
        return remote.state(path)
    try:
        stat = os.stat(path)  # noqa: PTH116 - as text, like a URL
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino
