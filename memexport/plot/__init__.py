"""Pictures of a timeline: a page to explore it in a browser, and PNG and SVG with matplotlib.

`render_page` needs nothing but the timeline; the others need matplotlib (`memexport[plot]`).
"""

from __future__ import annotations

from memexport.plot.page import PageTheme, render_page
from memexport.plot.picture import Look, render_png, render_svg

__all__ = ["Look", "PageTheme", "render_page", "render_png", "render_svg"]
