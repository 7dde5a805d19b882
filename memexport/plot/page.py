"""One self-contained HTML page of a timeline: nothing is fetched, names from the recording cannot run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final, Literal

from memexport.analysis.palette import CATEGORY_COLOURS, THEMES, Theme
from memexport.analysis.timeline import Timeline
from memexport.model import Category
from memexport.plot.about import title_of
from memexport.plot.page_data import page_data

PageTheme = Literal["auto", "light", "dark"]
"""`auto`: what the reader's system prefers. A button on the page changes it."""

_SCRIPTS: Final = ("1_recording.js", "2_chart.js", "3_tree.js", "4_page.js")
_PLACEHOLDER: Final = re.compile(r"\{(theme|title|script_hash|style_hash|style|script|data|light|dark)\}")


def render_page(timeline: Timeline, *, title: str | None = None, theme: PageTheme = "auto") -> str:
    """The page, as HTML.

    It may be written to a file, or be the `srcdoc` of an iframe. Its content policy allows its own script and
    style, by their hashes, and nothing else.

    Args:
        timeline: of `TimelineFold.result`.
        title: what the page is called; by default the program that was recorded.
        theme: which one it opens with.
    """
    script = "'use strict';\n(() => {\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();\n"
    style = _filled(_asset("page.css"), {"light": _variables("light"), "dark": _variables("dark")})
    values = {
        "theme": "" if theme == "auto" else f' data-theme="{theme}"',
        "title": html.escape(title_of(timeline, title)),
        "style": style,
        "style_hash": _hash(style),
        "script": script,
        "script_hash": _hash(script),
        "data": _json_in_html(page_data(timeline, title)),
    }
    return _filled(_asset("page.html"), values)


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    """In one pass: what is put in is not looked at again."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


def _variables(name: Literal["light", "dark"]) -> str:
    theme: Theme = THEMES[name]
    accent = CATEGORY_COLOURS[Category.PARAMETER]
    colours = {**vars(theme), "accent": accent}
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items()) + f" color-scheme: {name};"


def _json_in_html(value: Any) -> str:
    """JSON that no HTML parser sees the end of a script in, whatever its strings are; ASCII only."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(content: str) -> str:
    """As a content policy names it (CSP 3, 2.3.1)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
