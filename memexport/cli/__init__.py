"""The command line: one file per subcommand, and the only package that prints or exits.

Only what a command needs is imported, and only when it is called: `memexport --help` must answer at once.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

import memexport
from memexport.errors import MemexportError, OutputError

INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as shells count it: 128 + SIGINT."""


NOBODY_READS: Final = 141
"""The exit code after the reader of stdout has gone (`| head`), as shells count it: 128 + SIGPIPE."""


class _Command(NamedTuple):
    module: str
    help: str


COMMANDS: Final = {
    "run": _Command("memexport.cli.run", "Track the memory of a Python script or module."),
    "convert": _Command("memexport.cli.convert", "Write a recording in another format."),
    "push": _Command("memexport.cli.push", "Send a recording's metrics to an OpenTelemetry collector."),
    "summary": _Command("memexport.cli.summary", "Say what used the memory, and when it peaked."),
    "diff": _Command("memexport.cli.diff", "Say what one recording has more or less of than another."),
    "check": _Command("memexport.cli.check", "Fail if recordings exceed limits; for CI."),
    "info": _Command("memexport.cli.info", "Say where a recording comes from."),
    "view": _Command("memexport.cli.view", "Show a recording or a trace in the Perfetto UI."),
    "query": _Command("memexport.cli.query", "Ask SQL about a recording or a trace."),
    "plot": _Command("memexport.cli.plot", "Draw a recording: a page to explore, or a picture."),
    "doctor": _Command("memexport.cli.doctor", "Check this installation, or whether recordings are whole."),
    "completion": _Command("memexport.cli.completion", "Print a script that completes commands in a shell."),
    "formats": _Command("memexport.cli.formats", "List the formats that can be read and written."),
    "demo": _Command("memexport.cli.demo", "Train a small model under the tracker, and show the result."),
}


class _LazyGroup(click.Group):
    """Knows its commands by name and help, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        loaded: click.Command = importlib.import_module(COMMANDS[cmd_name].module).command
        return loaded

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, without importing any, and the options."""
        found = [
            CompletionItem(name, help=about.help)
            for name, about in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error

    def main(self, *args: Any, **extra: Any) -> Any:
        """As click's; but a help text that meets a full disk (`--help > FILE`) fails like any answer."""
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            from memexport.cli.terminal import say_failure, write_no_more

            write_no_more()
            say_failure(OutputError("stdout", None, os.strerror(error.errno)))
            sys.exit(OutputError.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MemexportError as error:
            from memexport.cli.terminal import say_failure

            say_failure(error)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            from memexport.cli.terminal import write_no_more

            write_no_more()
            ctx.exit(NOBODY_READS)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(memexport.__version__, prog_name="memexport")
def main() -> None:
    """Record, convert and explain the memory of PyTorch programs, operator by operator.

    Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 the input cannot be read, 4 the output cannot be
    written.
    """


__all__ = ["main"]
