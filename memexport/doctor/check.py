"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        name: what was checked.
        level: "failure": it does not work. "warning": it does, but something is missing or lost.
        says: what was found.
        next_step: what to do about it; None where there is nothing to do.
    """

    name: str
    level: Level
    says: str
    next_step: str | None = None
