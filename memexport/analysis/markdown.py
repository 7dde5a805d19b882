"""GitHub Markdown from names that anybody may have chosen.

A name goes into a code span: what is in one is neither markup, nor a mention, nor HTML, nor a link.
https://github.github.com/gfm/#code-spans, https://github.github.com/gfm/#tables-extension-
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from memexport.analysis.page import UNKNOWN, bar_text
from memexport.analysis.text import human_bytes, printable

_LONGEST: Final = 200
_BAR_WIDTH: Final = 16
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|~&$])")
_LINKING: Final = re.compile(r"[@#]|://|^www\.")
_TICKS: Final = re.compile(r"`+")


def code(name: str | None) -> str:
    """A name, fit for a table's cell."""
    if not name:
        return UNKNOWN
    # A backslash before it would make the pipe's own one a character, and so end the cell.
    text = printable(name, _LONGEST).replace("\\|", "\\\N{FULLWIDTH VERTICAL LINE}").replace("|", "\\|")
    fence = "`" * (1 + max(map(len, _TICKS.findall(text)), default=0))
    pad = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def prose(text: str) -> str:
    """A sentence with names in it: nothing in it is markup, and nobody is mentioned."""
    words = printable(text).split(" ")
    # GitHub looks for mentions, issue numbers and links after Markdown is done with backslashes.
    return " ".join(code(word) if _LINKING.search(word) else _SPECIAL.sub(r"\\\1", word) for word in words)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table; columns that begin with ">" are right-aligned. Cells must be Markdown already."""
    lines = [_row(column.removeprefix(">") for column in columns)]
    lines.append(_row("---:" if column.startswith(">") else "---" for column in columns))
    return [*lines, *map(_row, rows)]


def share_rows(rows: Iterable[tuple[str | None, int]], total: int) -> list[tuple[str, str, str, str]]:
    """Cells of name, bytes, share and bar."""
    return [
        (code(name), human_bytes(size), f"{size / total:.1%}", bar_text(size / total, _BAR_WIDTH))
        for name, size in rows
    ]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
