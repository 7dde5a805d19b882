"""`memexport formats`: the registry as a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from memexport import registry
from memexport.cli.terminal import answer
from memexport.registry import Format


@click.command("formats")
@click.option("--json", "style", flag_value="json", help="Print one JSON object.")
@click.option("--markdown", "style", flag_value="markdown", help="Print the table of the README.")
def command(style: str | None) -> None:
    """List the formats that can be read and written."""
    render: Callable[[], str] = {"json": _json, "markdown": _markdown}.get(style or "", _text)
    answer(render())


class _Row(NamedTuple):
    name: str
    files: str
    read: str
    write: str
    stability: str
    summary: str


_TITLES = _Row("format", "files", "read", "write", "stability", "what it is")


def _rows() -> list[_Row]:
    """One row per format; what is read and written is one row, under the name that `--to` takes."""
    written = list(registry.exporters())
    rows = [_row(f, read=any(_same(f, s) for s in registry.sources()), write=True) for f in written]
    rows += [
        _row(s, read=True, write=False) for s in registry.sources() if not any(_same(s, f) for f in written)
    ]
    return rows


def _same(one: Format, other: Format) -> bool:
    return one.suffixes[:1] == other.suffixes[:1] and one.summary == other.summary


def _row(format_: Format, *, read: bool, write: bool) -> _Row:
    yes_no = ("yes" if read else "no", "yes" if write else "no")
    return _Row(format_.name, " ".join(format_.suffixes), *yes_no, format_.stability, format_.summary)


def _text() -> str:
    rows = [_TITLES, *_rows()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _markdown() -> str:
    lines = [_TITLES, _Row(*(["---"] * len(_TITLES))), *(_with_code(row) for row in _rows())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _with_code(row: _Row) -> _Row:
    files = " ".join(f"`{suffix}`" for suffix in row.files.split())
    return row._replace(name=f"`{row.name}`", files=files)


def _json() -> str:
    return json.dumps(
        {
            "read": [_fields(format_) for format_ in registry.sources()],
            "write": [_fields(format_) for format_ in registry.exporters()],
        },
        indent=2,
    )


def _fields(format_: Format) -> dict[str, Any]:
    return {
        "name": format_.name,
        "suffixes": list(format_.suffixes),
        "stability": format_.stability,
        "summary": format_.summary,
    }
