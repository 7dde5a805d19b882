"""The command line: one file per subcommand, and the only package that prints or exits.

Only what a command needs is imported, and only when it is called: `memexport --help` must answer at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

import memexport
from memexport.errors import MemexportError

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

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MemexportError as error:
            from memexport.cli.terminal import say_failure

            say_failure(error)
            ctx.exit(error.exit_code)
        except BrokenPipeError:
            _read_no_more()
            ctx.exit(NOBODY_READS)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def _read_no_more() -> None:
    """Let nothing that is still to be written to stdout complain that nobody reads it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(memexport.__version__, prog_name="memexport")
def main() -> None:
    """Record, convert and explain the memory of PyTorch programs, operator by operator.

    Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 the input cannot be read, 4 the output cannot be
    written.
    """


__all__ = ["main"]
