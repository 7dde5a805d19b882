"""Writes pictures of a recording over time (`.png`, `.svg`), with matplotlib."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from memexport.analysis.palette import ThemeName
from memexport.analysis.timeline import Timeline
from memexport.analysis.timeline_fold import TimelineFold
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.plot.picture import Look, render_png, render_svg, require_matplotlib


class _PictureExporter(ABC):
    """A picture, written when the recording ends.

    Args:
        theme: its colours; "auto" is light, for paper is.
        width: in pixels.
        height: in pixels; by default what the devices need.
        title: by default the program that was recorded.

    Raises:
        UsageError: matplotlib is not installed.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        theme: ThemeName | Literal["auto"] = "auto",
        width: int = Look.width,
        height: int | None = None,
        title: str | None = None,
    ) -> None:
        require_matplotlib()
        self._destination = destination
        self._look = Look("light" if theme == "auto" else theme, width, height, title)

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file."""
        self._fold = TimelineFold(info, tables)
        self._destination.open()

    def write(self, batch: EventBatch) -> None:
        """Fold the batch."""
        self._fold.add(batch)

    def end(self, end: RecordingEnd) -> None:
        """Draw the picture, and put the file in its place."""
        self._destination.write(self._rendered(self._fold.result(end)))
        self._destination.commit()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._destination.discard()

    @abstractmethod
    def _rendered(self, timeline: Timeline) -> bytes:
        """The whole file."""


class PngExporter(_PictureExporter):
    """A picture in pixels."""

    def _rendered(self, timeline: Timeline) -> bytes:
        return render_png(timeline, self._look)


class SvgExporter(_PictureExporter):
    """A picture for documents: its texts are texts, in the reader's fonts."""

    def _rendered(self, timeline: Timeline) -> bytes:
        return render_svg(timeline, self._look).encode()
