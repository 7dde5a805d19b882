"""The page of a timeline inside a notebook."""

from __future__ import annotations

import html
from dataclasses import dataclass, field


@dataclass(frozen=True)
class InlinePage:
    """A page that a notebook shows where it is made, in a frame of its own.

    Its script can reach neither the notebook nor a network.

    Attributes:
        page: the document, as `render_page` gives it.
        height: of the frame, in CSS pixels; it is as wide as the notebook.
    """

    page: str = field(repr=False)
    height: int = 720

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        document = html.escape(self.page, quote=True)
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{document}"></iframe>'
