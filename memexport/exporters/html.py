"""Writes a page to explore a recording in a browser (`.html`)."""

from __future__ import annotations

from memexport.analysis.timeline_fold import TimelineFold
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.plot.page import PageTheme, render_page


class HtmlExporter:
    """One self-contained page: nothing is fetched when it is opened. It is written when the recording ends.

    Args:
        theme: which colours it opens with; "auto": what the reader's system prefers.
        title: what the page is called; by default the program that was recorded.
    """

    def __init__(
        self, destination: Destination, *, theme: PageTheme = "auto", title: str | None = None
    ) -> None:
        self._destination = destination
        self._theme = theme
        self._title = title

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file."""
        self._fold = TimelineFold(info, tables)
        self._destination.open()

    def write(self, batch: EventBatch) -> None:
        """Fold the batch."""
        self._fold.add(batch)

    def end(self, end: RecordingEnd) -> None:
        """Write the page, and put the file in its place."""
        page = render_page(self._fold.result(end), title=self._title, theme=self._theme)
        self._destination.write(page.encode())
        self._destination.commit()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._destination.discard()
