"""Pages of text for people: tables, bars and paragraphs, for a terminal or for a file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from memexport.analysis.palette import CATEGORY_COLOURS, COUNTER_COLOURS
from memexport.analysis.text import human_bytes, printable
from memexport.model import Category

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

NARROW: Final = 80
WIDE: Final = 120
"""Wider lines are hard to read."""

UNKNOWN: Final = "\N{EN DASH}"

_TITLE: Final = "bold"
_FIGURES: Final = (11, 6)
"""Columns of bytes ("1023.99 KiB") and of a share."""

_FIGURES_WIDTH: Final = sum(_FIGURES) + 3 * 3
"""With the gaps around them."""

_SHORTEST_BAR: Final = 8
_LONGEST_BAR: Final = 40
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Style:
    """What the page is for.

    Attributes:
        width: of the lines, in columns.
        colours: the colours that a terminal has; None: none, and no control characters at all.
        blocks: whether bars may be made of block elements; else of "#".
    """

    width: int = NARROW
    colours: Literal["standard", "256", "truecolor"] | None = None
    blocks: bool = True


PLAIN: Final = Style()


def rendered(parts: Sequence[RenderableType], style: Style = PLAIN) -> str:
    """The parts one below the other, without spaces at the ends of lines, ending without a line feed."""
    from rich.console import Console

    stream = io.StringIO()
    # The environment (FORCE_COLOR, COLUMNS) must not change what a string is.
    console = Console(
        file=stream,
        width=style.width,
        color_system=style.colours,
        force_terminal=style.colours is not None,
        no_color=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def new_table(title: str, *columns: str) -> Table:
    """A table whose columns that begin with ">" are right-aligned numbers."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title or None,
        title_justify="left",
        title_style=_TITLE,
        header_style="",
        border_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        if column.startswith(">"):
            table.add_column(column[1:], justify="right", no_wrap=True)
        else:
            table.add_column(column, overflow="fold")
    return table


def shares(
    listings: Sequence[tuple[str, Sequence[tuple[str, int]]]], total: int, style: Style
) -> list[RenderableType]:
    """A table for each listing that has rows: names, bytes, and a bar for each row's share of `total`.

    A listing is its title and its rows. Their columns stand below one another.
    """
    filled = [(title, rows) for title, rows in listings if rows]
    names = (name for title, rows in filled for name in (title, *(name for name, _ in rows)))
    name_width = min(max(map(len, names), default=0), style.width - _FIGURES_WIDTH - _SHORTEST_BAR)
    bar_width = min(style.width - _FIGURES_WIDTH - name_width, _LONGEST_BAR)
    parts: list[RenderableType] = []
    for title, rows in filled:
        table = new_table("", title, ">bytes", ">share", "")
        for column, width in zip(table.columns, (name_width, *_FIGURES, bar_width), strict=True):
            column.min_width = column.max_width = width
        for name, size in rows:
            share = size / total
            table.add_row(name, human_bytes(size), f"{share:.1%}", _bar(name, share, bar_width, style))
        parts += ["", table]
    return parts


def _bar(name: str, share: float, width: int, style: Style) -> Text:
    """A bar of this part of a full one, in the colour of the category of this name, if it is one."""
    from rich.text import Text

    named = Category.__members__.get(name.upper())
    colour = COUNTER_COLOURS["allocated"] if named is None else CATEGORY_COLOURS.get(named, "")
    return Text(bar_text(share, width, blocks=style.blocks), style=colour)


def bar_text(share: float, width: int, *, blocks: bool = True) -> str:
    """The characters of a bar; what is more than nothing can be seen."""
    share = min(max(share, 0.0), 1.0)
    if not blocks:
        return "#" * max(round(share * width), int(share > 0))
    eighths = max(round(share * width * 8), int(share > 0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def heading(text: str) -> Text:
    """A line that begins a part of the page."""
    from rich.text import Text

    return Text(printable(text), style=_TITLE)


def numbered(texts: Sequence[str]) -> Table:
    """Paragraphs with numbers before them."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for number, text in enumerate(texts, 1):
        grid.add_row(f"{number}.", printable(text))
    return grid


def cell(text: str | None) -> str:
    """A name from a file, as a table shows it."""
    return printable(text) if text else UNKNOWN


def signed_bytes(count: int) -> str:
    """With a plus before what is more."""
    return f"+{human_bytes(count)}" if count > 0 else human_bytes(count)


def plural(count: int, one: str, many: str | None = None) -> str:
    """The count with its noun: "1 step", "2,000 steps"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
