"""Sizes, tolerances and slopes on the command line."""

from __future__ import annotations

import click

from memexport.analysis.sizes import parse_size
from memexport.analysis.tolerance import Tolerance, parse_slope, parse_tolerance


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


class Allowance(click.ParamType[Tolerance]):
    """How much more than before is fine: a percentage, or a number of bytes."""

    name = "tolerance"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Tolerance:
        """The tolerance; a usage error for what is none."""
        if isinstance(value, Tolerance):
            return value
        try:
            return parse_tolerance(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Slope(click.ParamType[int]):
    """Bytes a step."""

    name = "slope"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; a usage error for what is no slope."""
        if isinstance(value, int):
            return value
        try:
            return parse_slope(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
