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
def progress_bar(what: str) -> Iterator[Progress | None]:
    """A callback for `pipeline` that shows how far it is; None where nobody watches.

    The bar is gone when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    shown = _LateBar(what)
    try:
        yield shown.update
    finally:
        shown.close()


class _LateBar:
    def __init__(self, what: str) -> None:
        self._what = printable(what)
        self._began = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def update(self, events: int, fraction: float | None) -> None:
        if self._bar is None and time.monotonic() - self._began > PATIENCE_S:
            self._open()
        if self._bar is not None and self._task is not None:
            total = None if fraction is None else 1.0
            self._bar.update(self._task, completed=fraction or 0.0, total=total, events=f"{events:,} events")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[events]}"),
        )
        self._bar = Progress(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr), transient=True)
        self._task = self._bar.add_task(self._what, total=None, events="")
        self._bar.start()
