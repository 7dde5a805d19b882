"""The options that choose a part of a recording, the same for every command that has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from memexport.analysis.when import parse_when
from memexport.cli.sizes import Size
from memexport.errors import UsageError


class Whenever(click.ParamType[str]):
    """A place in a recording, as `memexport.Selection` takes it."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, checked; a usage error for what is no place."""
        try:
            parse_when(str(value))
        except UsageError as error:
            self.fail(f"{error}; {error.hint}", param, ctx)
        return str(value)


_OPTIONS = (
    click.option(
        "--from",
        "begin",
        metavar="WHEN",
        type=Whenever(),
        help="Begin at an event (1000), a time after the start (12.5s, 300ms) or a time in UTC"
        " (2026-11-21T13:00:00Z). What is live then comes along.",
    ),
    click.option(
        "--until",
        metavar="WHEN",
        type=Whenever(),
        help="Go up to there, not including it. What comes after is not read.",
    ),
    click.option(
        "--device",
        "devices",
        metavar="NAME",
        multiple=True,
        help="Only this device (cuda:0); may be given several times.",
    ),
    click.option(
        "--min-bytes",
        metavar="SIZE",
        type=Size(),
        default=0,
        help="Leave out smaller allocations (512KiB); counters and their peaks stay exact.",
    ),
)


def selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command `--from`, `--until`, `--device` and `--min-bytes`, as its argument `selection`."""

    @functools.wraps(command)
    def with_selection(
        begin: str | None, until: str | None, devices: tuple[str, ...], min_bytes: int, **others: Any
    ) -> None:
        from memexport.analysis.selection import Selection

        command(selection=Selection(begin, until, devices, min_bytes), **others)

    for option in reversed(_OPTIONS):
        option(with_selection)
    return with_selection
