"""PNG and SVG of a timeline, drawn with matplotlib: a panel for each device."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from typing import Any, Final

from memexport.analysis.palette import THEMES, ThemeName
from memexport.analysis.timeline import DeviceTimeline, Timeline, coarser
from memexport.errors import UsageError
from memexport.plot.about import facts_of, title_of
from memexport.plot.panel import Panel

MOST_PANELS: Final = 8
"""How many devices a picture shows; of more, those with the highest peaks."""

_DPI: Final = 100
_PANEL_HEIGHT: Final = 270
_LEAST_HEIGHT: Final = 600


@dataclass(frozen=True)
class Look:
    """How a picture looks.

    Attributes:
        theme: its colours.
        width: in pixels; of an SVG, in CSS pixels.
        height: likewise; None: what the panels need.
        title: by default the program that was recorded.
    """

    theme: ThemeName = "light"
    width: int = 1200
    height: int | None = None
    title: str | None = None


def require_matplotlib() -> None:
    """Do nothing if matplotlib is installed.

    Raises:
        UsageError: it is not.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "pictures need matplotlib, which is not installed",
            hint="pip install 'memexport[plot]'; an .html page needs nothing",
        )


def render_png(timeline: Timeline, look: Look | None = None) -> bytes:
    """The picture as PNG. The same timeline gives the same bytes.

    Raises:
        UsageError: matplotlib is not installed.
    """
    return _rendered(timeline, look or Look(), "png")


def render_svg(timeline: Timeline, look: Look | None = None) -> str:
    """The picture as SVG, whose texts are texts. The same timeline gives the same text.

    Raises:
        UsageError: matplotlib is not installed.
    """
    return _rendered(timeline, look or Look(), "svg").decode()


def _rendered(timeline: Timeline, look: Look, format_: str) -> bytes:
    require_matplotlib()
    import matplotlib

    written = io.BytesIO()
    # Texts stay texts, and ids do not depend on chance.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "memexport", "font.size": 9.0}
    with matplotlib.rc_context(settings):
        figure = _figure(timeline, look)
        metadata = {"Date": None} if format_ == "svg" else {"Software": "memexport"}
        figure.savefig(written, format=format_, facecolor=figure.get_facecolor(), metadata=metadata)
    return written.getvalue()


def _figure(timeline: Timeline, look: Look) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = _shown(timeline)
    theme = THEMES[look.theme]
    height = look.height or max(_LEAST_HEIGHT, _PANEL_HEIGHT * len(shown) + 106)
    figure = Figure(figsize=(look.width / _DPI, height / _DPI), dpi=_DPI, facecolor=theme.surface)
    FigureCanvasAgg(figure)
    _write_head(figure, timeline, look, len(shown))
    if not shown:
        figure.text(0.5, 0.5, "nothing says how much memory was in use", color=theme.muted, ha="center")
        return figure
    # Margins in pixels, so that texts have the room they need at every size.
    grid = figure.add_gridspec(
        len(shown),
        1,
        left=76 / look.width,
        right=1 - 236 / look.width,
        top=1 - 116 / height,
        bottom=52 / height,
        hspace=90 / max(1.0, (height - 168) / len(shown) - 60),
    )
    factor = max(1, timeline.bins // look.width)
    for number, device in enumerate(shown):
        axes = figure.add_subplot(grid[number])
        Panel(axes, timeline, coarser(device, factor), timeline.bin_ns * factor, theme).draw()
    return figure


def _shown(timeline: Timeline) -> list[DeviceTimeline]:
    """The devices with the highest peaks, in their order."""
    highest = sorted(timeline.devices, key=lambda device: -device.peak.allocated_bytes)[:MOST_PANELS]
    return [device for device in timeline.devices if any(device is other for other in highest)]


def _write_head(figure: Any, timeline: Timeline, look: Look, shown: int) -> None:
    theme, height = THEMES[look.theme], figure.get_figheight() * _DPI
    facts = list(facts_of(timeline))
    if left_out := len(timeline.devices) - shown:
        facts.append(f"{left_out} devices with lower peaks are not shown")
    left = 20 / look.width
    title = _plain(title_of(timeline, look.title))
    figure.text(left, 1 - 30 / height, title, color=theme.ink, fontsize=13, weight="bold", va="center")
    line = _plain(" · ".join(facts))
    figure.text(left, 1 - 51 / height, line, color=theme.muted, fontsize=9, va="center")


def _plain(text: str) -> str:
    """Without what matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
