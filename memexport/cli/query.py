"""`memexport query`: SQL about a trace, or a recording as a trace."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from memexport.analysis.text import printable
from memexport.cli.files import TRACES, InputFile
from memexport.cli.inputs import STDIN
from memexport.cli.progress import progress_bar
from memexport.cli.terminal import answer
from memexport.cli.traces import trace_of
from memexport.errors import InputError, UsageError

if TYPE_CHECKING:
    from memexport.trace_processor import Cell, Table

_NULL: Final = "NULL"


@click.command("query")
@click.argument("name", metavar="INPUT", type=InputFile(TRACES))
@click.argument("sql", required=False)
@click.option(
    "--file", "sql_file", metavar="FILE", type=click.Path(), help="Read the SQL from FILE; - is stdin."
)
@click.option("--json", "style", flag_value="json", help="Print an array with an object for each row.")
@click.option("--csv", "style", flag_value="csv", help="Print CSV, after a line with the columns' names.")
def command(name: str, sql: str | None, sql_file: str | None, style: str | None) -> None:
    """Ask SQL about INPUT, a trace or a recording, through Perfetto's trace processor.

    Of several statements, separated by ;, the last one's result is printed.
    https://perfetto.dev/docs/analysis/sql-tables lists the tables: slice, counter, counter_track, ...
    """
    if (sql is None) == (sql_file is None):
        raise click.UsageError("say either the SQL or, with --file, the file that has it")
    if name == sql_file == STDIN:
        raise UsageError("stdin can be read once only")
    statements = _read(sql_file) if sql is None else sql
    table = _ask(name, statements)
    render: Callable[[Table], str] = {"json": _json, "csv": _csv}.get(style or "", _text)
    answer(render(table))


def _read(path: str | None) -> str:
    try:
        if path == STDIN:
            return sys.stdin.buffer.read().decode()
        return Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), None, getattr(error, "strerror", None) or str(error)) from error


def _ask(name: str, sql: str) -> Table:
    from memexport.trace_processor import TraceProcessor

    with TraceProcessor() as processor, trace_of(name, searched=False) as trace:
        with progress_bar(f"Loading {trace.name}", "bytes") as progress:
            processor.load(trace.path, progress)
        return processor.table(sql)


def _json(table: Table) -> str:
    rows = [dict(zip(table.columns, map(_json_value, row), strict=True)) for row in table.rows]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def _json_value(cell: Cell) -> Any:
    """JSON has no bytes, and no infinity."""
    if isinstance(cell, bytes) or (isinstance(cell, float) and not math.isfinite(cell)):
        return _shown(cell)
    return cell


def _csv(table: Table) -> str:
    """A NULL is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(["" if cell is None else _shown(cell) for cell in row] for row in table.rows)
    return text.getvalue().rstrip("\n")


def _text(table: Table) -> str:
    """For people: with lines in a terminal, else columns of plain text."""
    rows = [[printable(_shown(cell)) for cell in row] for row in table.rows]
    right = [
        bool(rows) and all(isinstance(row[column], int | float | None) for row in table.rows)
        for column in range(len(table.columns))
    ]
    return _drawn(table.columns, rows, right) if sys.stdout.isatty() else _plain(table.columns, rows, right)


def _plain(columns: tuple[str, ...], rows: list[list[str]], right: list[bool]) -> str:
    lines = [list(map(printable, columns)), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _drawn(columns: tuple[str, ...], rows: list[list[str]], right: list[bool]) -> str:
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn()
    for name, to_the_right in zip(columns, right, strict=True):
        drawn.add_column(Text(printable(name)), justify="right" if to_the_right else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style="dim" if cell == _NULL else "") for cell in row))
    console = Console()
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().rstrip("\n")


def _shown(cell: Cell) -> str:
    """As text; a blob as SQL writes it."""
    if cell is None:
        return _NULL
    return f"x'{cell.hex()}'" if isinstance(cell, bytes) else str(cell)
