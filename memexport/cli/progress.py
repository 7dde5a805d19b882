"""A progress bar on stderr, for people who wait."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from memexport.analysis.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from memexport.pipeline import Progress

PATIENCE_S: Final = 1.0
"""Work that takes no longer shows nothing."""


@contextlib.contextmanager
def progress_bar(what: str, unit: str = "events") -> Iterator[Progress | None]:
    """A callback for `pipeline` that shows how far it is, counted in `unit`; None where nobody watches.

    The bar is gone when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    shown = _LateBar(what, unit)
    try:
        yield shown.update
    finally:
        shown.close()


class _LateBar:
    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = printable(what), unit
        self._began = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def update(self, count: int, fraction: float | None) -> None:
        if self._bar is None and time.monotonic() - self._began > PATIENCE_S:
            self._open()
        if self._bar is not None and self._task is not None:
            total = None if fraction is None else 1.0
            done = f"{count:,} {self._unit}" if count else ""
            self._bar.update(self._task, completed=fraction or 0.0, total=total, done=done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[done]}"),
        )
        self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr), transient=True)
        self._task = self._bar.add_task(self._what, total=None, done="")
        self._bar.start()
