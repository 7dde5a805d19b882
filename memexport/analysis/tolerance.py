"""How much more than before is still fine, as people write it: "2%", "10MiB", "1MiB/step"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from memexport.analysis.sizes import parse_size
from memexport.analysis.text import human_bytes

_PERCENT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_PER_STEP: Final = re.compile(r"\s*/\s*step\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Tolerance:
    """A part of what was before, or bytes; the one that is not given is 0."""

    percent: float = 0.0
    bytes: int = 0

    def allows(self, before: int) -> int:
        """The most that is still fine, in bytes."""
        return before + self.bytes + int(before * self.percent / 100)

    def __str__(self) -> str:
        return human_bytes(self.bytes) if self.bytes else f"{self.percent:g} %"


def parse_tolerance(text: str) -> Tolerance:
    """The tolerance.

    Raises:
        ValueError: this is none.
    """
    if match := _PERCENT.fullmatch(text):
        return Tolerance(percent=float(match[1]))
    try:
        return Tolerance(bytes=parse_size(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is no tolerance; write 2% or 10MiB") from error


def parse_slope(text: str) -> int:
    """Bytes a step: "1MiB/step", or without the "/step".

    Raises:
        ValueError: this is none.
    """
    try:
        return parse_size(_PER_STEP.sub("", text))
    except ValueError as error:
        raise ValueError(f"{text!r} is no growth; write 1MiB/step") from error
