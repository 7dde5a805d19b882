"""One palette for every picture: what each category and counter is called, and its colour.

A colour has a contrast of at least 3 to 1 to the light and to the dark background, so one colour serves both
(WCAG 2.2, 1.4.11). Of categories that may lie on each other in a stack, light and dark ones take turns:
they stay apart for people who see no red, green or blue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from memexport.model import Category, Phase

CATEGORY_COLOURS: Final[Mapping[Category, str]] = {
    Category.PARAMETER: "#416be4",
    Category.SHARDED_PARAMETER: "#059dda",
    Category.UNSHARDED_PARAMETER: "#5a57c8",
    Category.BUFFER: "#569b9a",
    Category.OPTIMIZER_STATE: "#7f549d",
    Category.GRADIENT: "#d2653d",
    Category.SHARDED_GRADIENT: "#be3301",
    Category.UNSHARDED_GRADIENT: "#ee646d",
    Category.ALL_GATHER: "#a14672",
    Category.REDUCE_SCATTER: "#cc71a7",
    Category.INPUT: "#069ecb",
    Category.ACTIVATION: "#287b60",
    Category.TEMPORARY: "#b58e18",
    Category.OTHER: "#925a25",
    Category.UNATTRIBUTED: "#89919e",
}
"""From the bottom of a stack to its top: what stays comes first, so that what comes and goes lies on it."""

COUNTER_COLOURS: Final[Mapping[str, str]] = {
    "allocated": "#416be4",
    "active": "#b58e18",
    "reserved": "#bb4a93",
}
"""The counters of a device, by the names that metrics have."""

OUT_OF_MEMORY: Final = "#d9362b"
"""The colour of a request that failed, and of nothing else."""

PHASE_SHADES: Final[Mapping[Phase, float]] = {
    Phase.FORWARD: 0.16,
    Phase.BACKWARD: 0.42,
    Phase.RECOMPUTE: 0.29,
    Phase.OPTIMIZER: 0.68,
    Phase.OTHER: 0.06,
}
"""How much ink the strip of phases takes, 0 to 1: they are order in time, and colours are taken."""

ThemeName = Literal["light", "dark"]


@dataclass(frozen=True)
class Theme:
    """The colours of everything that is not a category.

    Attributes:
        page: behind everything.
        surface: behind a chart; the categories stand out from it.
        ink: text, and the lines that matter.
        muted: text of second rank.
        line: grids and borders.
        raised: a surface under the pointer.
    """

    page: str
    surface: str
    ink: str
    muted: str
    line: str
    raised: str


THEMES: Final[Mapping[ThemeName, Theme]] = {
    "light": Theme("#f5f6f8", "#ffffff", "#171a20", "#5d6673", "#e1e4e9", "#eef0f3"),
    "dark": Theme("#0c0e12", "#14171c", "#e9ebef", "#98a1ae", "#2a2f38", "#1f242c"),
}


def category_label(category: int) -> str:
    """In lower case with blanks, as every output writes it; "unattributed" for what explains nothing."""
    known = shown_category(category)
    return known.name.lower().replace("_", " ")


def shown_category(category: int) -> Category:
    """The category, UNATTRIBUTED for UNKNOWN and for one that only a later version of the model has."""
    return Category(category) if category in CATEGORY_COLOURS else Category.UNATTRIBUTED


__all__ = [
    "CATEGORY_COLOURS",
    "COUNTER_COLOURS",
    "OUT_OF_MEMORY",
    "PHASE_SHADES",
    "THEMES",
    "Theme",
    "ThemeName",
    "category_label",
    "shown_category",
]
