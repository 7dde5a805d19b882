"""Ranges of steps on the command line."""

from __future__ import annotations

import click


class StepRange(click.ParamType[tuple[int, int]]):
    """A:B, from step A up to but without step B."""

    name = "A:B"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """The two numbers; a usage error for anything else."""
        if isinstance(value, tuple):
            return value
        begin, _, end = str(value).partition(":")
        if not (begin.isdecimal() and end.isdecimal()):
            self.fail(f"{value!r} is not A:B, two step numbers from 0", param, ctx)
        return int(begin), int(end)
