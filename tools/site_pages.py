"""What `mkdocs build` finds beside docs/: pages and colours made from the code, and files from outside docs/.

A hook of mkdocs (https://www.mkdocs.org/user-guide/configuration/#hooks): it calls the functions whose names
begin with `on_`. Pages in docs/ link to files of the repository the way GitHub follows; here such a link is
made to lead to where the file is on the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import command_reference
import format_reference
import schema_reference
from gen_protos import ROOT, SCHEMA
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from memexport.analysis.palette import CATEGORY_COLOURS, COUNTER_COLOURS, THEMES, Theme
from memexport.model import Category

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

MARK_CATEGORIES: Final = (Category.ACTIVATION, Category.GRADIENT, Category.PARAMETER)
SCHEMES: Final = {"light": "default", "dark": "slate"}


def palette_css() -> str:
    """The variables of the theme, in the colours of every other picture."""
    return "\n".join(_scheme(SCHEMES[name], theme) for name, theme in THEMES.items())


def _scheme(scheme: str, theme: Theme) -> str:
    accent = COUNTER_COLOURS["allocated"]
    # Text needs more contrast than an area does, so the accent goes a third of the way to the ink.
    link = f"color-mix(in srgb, {accent} 67%, {theme.ink})"
    variables = {
        "--md-default-bg-color": theme.surface,
        "--md-default-fg-color": theme.ink,
        "--md-default-fg-color--light": theme.muted,
        "--md-primary-fg-color": theme.surface,
        "--md-primary-bg-color": theme.ink,
        "--md-primary-bg-color--light": theme.muted,
        "--md-accent-fg-color": accent,
        "--md-typeset-color": theme.ink,
        "--md-typeset-a-color": link,
        "--md-typeset-table-color": theme.line,
        "--md-code-bg-color": theme.page,
        "--md-code-fg-color": theme.ink,
        "--md-footer-bg-color": theme.page,
        "--md-footer-bg-color--dark": theme.page,
        "--md-footer-fg-color": theme.ink,
        "--md-footer-fg-color--light": theme.muted,
        "--md-footer-fg-color--lighter": theme.muted,
        "--memexport-ink": theme.ink,
        "--memexport-muted": theme.muted,
        "--memexport-line": theme.line,
    }
    body = "".join(f"  {name}: {value};\n" for name, value in variables.items())
    return f'[data-md-color-scheme="{scheme}"] {{\n{body}}}\n'


def mark_svg() -> str:
    """The project's mark: three categories on each other, as in every picture."""
    bars = "".join(
        f'<rect x="3" y="{3 + 6.5 * row}" width="{8 + 5 * row}" height="5" rx="1" '
        f'fill="{CATEGORY_COLOURS[category]}"/>'
        for row, category in enumerate(MARK_CATEGORIES)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">{bars}</svg>\n'


MADE: Final[Mapping[str, Callable[[], str]]] = {
    "assets/mark.svg": mark_svg,
    "assets/palette.css": palette_css,
    "reference/archive-schema.md": schema_reference.page,
    "reference/columns.md": format_reference.columns_page,
    "reference/command-line.md": command_reference.page,
    "reference/formats.md": format_reference.formats_page,
}
"""What is made, by its place on the site."""

BROUGHT: Final[Mapping[str, str]] = {
    "README.md": "project/overview.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "contrib/README.md": "contrib/index.md",
} | {
    f"contrib/{path.name}": f"contrib/{path.name}"
    for path in sorted((ROOT / "contrib").iterdir())
    if path.name != "README.md"
}
"""Files from outside docs/, by their place in the repository."""

PLACES: Final[Mapping[str, str]] = {
    **BROUGHT,
    "contrib": "contrib/index.md",
    f"schemas/{SCHEMA}": "reference/archive-schema.md",
}
"""Where a link to a file or folder outside docs/ leads."""

_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
_FENCED: Final = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made and what is brought."""
    for uri, make in MADE.items():
        files.append(File.generated(config, uri, content=make()))
    for path, uri in BROUGHT.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links to where their files are on the site."""
    return led(markdown, page.file.src_uri)


def led(markdown: str, uri: str) -> str:
    """The page at `uri` with its links as the site needs them; code is left alone.

    Raises:
        PluginError: a link leads to a file that is not on the site.
    """
    origin = next((path for path, place in BROUGHT.items() if place == uri), f"docs/{uri}")
    code = _FENCED.finditer(markdown)
    result, at = [], 0
    for block in code:
        result += [_led_text(markdown[at : block.start()], origin, uri), block[0]]
        at = block.end()
    return "".join([*result, _led_text(markdown[at:], origin, uri)])


def _led_text(text: str, origin: str, uri: str) -> str:
    def place(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[0]))
        inside = target.removeprefix("docs/") if target.startswith("docs/") else PLACES.get(target)
        if inside is None:
            raise PluginError(f"{origin} links to {link[0]}, which is not on the site")
        return posixpath.relpath(inside, posixpath.dirname(uri) or ".")

    return _LINK.sub(place, text)
