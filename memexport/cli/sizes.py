"""Sizes on the command line."""

from __future__ import annotations

import click

from memexport.analysis.sizes import parse_size


class Size(click.ParamType[int]):
    """A number of bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; a usage error for what is no size."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
