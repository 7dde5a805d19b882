"""`memexport doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from memexport.analysis.text import printable
from memexport.cli.files import InputFile
from memexport.cli.inputs import opened
from memexport.cli.progress import progress_bar
from memexport.cli.terminal import answer, page_style
from memexport.errors import InputError

if TYPE_CHECKING:
    from memexport.doctor import Check

_MARKS: Final = {"ok": "ok", "warning": "WARNING", "failure": "FAILURE"}
_COLORS: Final = {"ok": "green", "warning": "yellow", "failure": "red"}
_MARK_WIDTH: Final = max(map(len, _MARKS.values()))


@click.command("doctor")
@click.argument("inputs", metavar="[FILE]...", nargs=-1, type=InputFile())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(inputs: tuple[str, ...], as_json: bool) -> None:
    """Check this installation, or whether the recordings FILE are whole.

    Without FILE: Python, packages, the tracker with this torch, the collector that OTEL_* variables name,
    this folder. With FILE: every batch of it is read. Exits with 1 if something does not work.
    """
    checks = _files(inputs) if inputs else _installation()
    levels = _print_json(checks) if as_json else _print_text(checks)
    sys.exit(1 if "failure" in levels else 0)


def _installation() -> Iterator[Check]:
    from memexport.doctor import installation_checks

    yield from installation_checks()


def _files(names: tuple[str, ...]) -> Iterator[Check]:
    from memexport.doctor.files import file_checks, refused

    for name in names:
        try:
            recording = opened(name)
        except InputError as error:
            yield refused(name, error)
            continue
        with recording, progress_bar(f"Reading {name}") as progress:
            yield from file_checks(name, recording, progress)


def _print_json(checks: Iterable[Check]) -> set[str]:
    found = list(checks)
    levels = {check.level for check in found}
    fields = [dataclasses.asdict(check) for check in found]
    answer(json.dumps({"ok": "failure" not in levels, "checks": fields}, indent=2))
    return set(levels)


def _print_text(checks: Iterable[Check]) -> set[str]:
    """Each line as soon as it is known: some checks take a second."""
    levels, has_colours = set(), page_style().colours is not None
    for check in checks:
        mark = _MARKS[check.level].ljust(_MARK_WIDTH)
        if has_colours:
            mark = click.style(mark, fg=_COLORS[check.level])
        answer(f"{mark}  {printable(check.name, 200)}: {printable(check.says, 2000)}")
        if check.next_step:
            answer(f"{'':{_MARK_WIDTH}}  → {printable(check.next_step, 500)}")
        levels.add(check.level)
    return set(levels)
