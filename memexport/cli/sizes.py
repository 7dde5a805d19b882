"""Sizes as people write them: 4096, 512KiB, 1.5 GiB."""

from __future__ import annotations

import re
from typing import Final

import click

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


class Size(click.ParamType[int]):
    """A number of bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes; a usage error for what is no size."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value))
        if match is None or match[2].lower() not in _UNITS:
            self.fail(f"{value!r} is no size; write 4096, 512KiB or 1.5GiB", param, ctx)
        return round(float(match[1]) * _UNITS[match[2].lower()])
