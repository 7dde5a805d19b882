"""The site builds without a warning, holds together, and fetches nothing from anywhere."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
import schema_reference
import site_pages
from mkdocs.exceptions import PluginError

import memexport
from memexport import compat, plot, registry
from memexport.analysis.palette import THEMES
from memexport.cli import COMMANDS
from memexport.model import COLUMNS

ROOT = Path(__file__).parents[2]
FETCHING = {"link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src", "object": "data"}
# Not fetched: it says which page this is, or where the next one is.
NO_FETCH = {"canonical", "next", "prev", "edit"}
IN_CSS = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""")


class Page(html.parser.HTMLParser):
    """The parts of a page that matter: its anchors, its links, and what it fetches."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.fetched = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in FETCHING and values.get(FETCHING[tag]) and values.get("rel") not in NO_FETCH:
            self.fetched.append(values[FETCHING[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder that the site was built into."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Every page by its path; the one for addresses that do not exist has links from the root."""
    return {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
        if path.name != "404.html"
    }


def test_nothing_is_fetched_from_anywhere_else(site, pages):
    fetched = {(path.name, target) for path, page in pages.items() for target in page.fetched}
    assert len(fetched) > len(pages)
    assert [found for found in fetched if re.match(r"(https?:)?//", found[1])] == []
    for path in site.rglob("*.css"):
        assert not IN_CSS.search(path.read_text(encoding="utf-8")), path.name


def test_every_link_leads_to_a_page_and_every_anchor_to_a_place_on_it(pages):
    broken, followed = [], 0
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(address.path)).resolve() if address.path else path
            anchor = urllib.parse.unquote(address.fragment)
            followed += 1
            # The theme's own link to the top of a page without headings, and to the top of every page.
            known = target not in pages or anchor in {"", "__skip", *pages[target].anchors}
            if not target.is_file() or not known:
                broken.append((path.name, link))
    assert broken == []
    assert followed > 1000


def test_every_public_name_has_an_entry(site, pages):
    anchors = pages[site / "reference" / "python.html"].anchors
    missing = {f"memexport.{name}" for name in memexport.__all__}
    missing |= {f"memexport.compat.{name}" for name in compat.__all__ if name.endswith("Tracker")}
    missing |= {f"memexport.plot.{name}" for name in plot.__all__ if name != "PageTheme"}
    missing |= {"memexport.exporters.Exporter", "memexport.sources.Source", "memexport.registry.Format"}
    assert missing - anchors == set()


def test_every_command_format_and_column_has_an_entry(site, pages):
    reference = site / "reference"
    assert {f"memexport-{name}" for name in COMMANDS} <= pages[reference / "command-line.html"].anchors
    text = (reference / "command-line.html").read_text(encoding="utf-8")
    assert "<code>--fail-on-increase [TOLERANCE]</code>" in text
    formats = (reference / "formats.html").read_text(encoding="utf-8")
    for format_ in (*registry.SOURCES, *registry.EXPORTERS):
        assert f'>{format_.name}<a class="headerlink"' in formats
        assert format_.target.rpartition(":")[2] in formats
    columns = (reference / "columns.html").read_text(encoding="utf-8")
    assert [name for name in COLUMNS if f"<code>{name}</code>" not in columns] == []


def test_docstrings_are_shown_as_sections_not_as_text(pages):
    for path in pages:
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"<p>\s*(Args|Returns|Raises|Attributes|Yields):", text), path.name


def test_the_schema_reference_explains_every_message_field_and_value():
    file, _ = schema_reference.described()
    page = schema_reference.page()
    for message in file.message_type:
        assert f"\n## {message.name}\n" in page
        assert all(f"| {field.number} | `{field.name}` | " in page for field in message.field)
    for enum in file.enum_type:
        assert all(f"| `{value.name}` | " in page for value in enum.value)
    assert "map of `string` to `string`" in page
    assert "| 7 | `start_time_unix_ns` | optional `sfixed64` | When recording began. |" in page
    assert schema_reference.enum_comments("Phase")["recompute"] == "A forward run again inside backward."


def test_the_colours_are_those_of_the_palette():
    css = site_pages.palette_css()
    for scheme, name in (("default", "light"), ("slate", "dark")):
        (block,) = re.findall(rf'\[data-md-color-scheme="{scheme}"\] {{(.*?)}}', css, re.DOTALL)
        assert f"--md-default-bg-color: {THEMES[name].surface};" in block
        assert f"--md-typeset-color: {THEMES[name].ink};" in block


@pytest.mark.parametrize(
    ("uri", "text", "led"),
    [
        ("check.md", "[a](../README.md#limits)", "[a](project/overview.md#limits)"),
        ("how-to/x.md", "[a](../summary.md) [b](#c)", "[a](../summary.md) [b](#c)"),
        ("project/overview.md", "![a](docs/pictures/demo.png)", "![a](../pictures/demo.png)"),
        ("opentelemetry.md", "[a](../contrib)", "[a](contrib/index.md)"),
        ("contrib/index.md", "[a](../docs/check.md)", "[a](../check.md)"),
        ("check.md", "[a](https://pytorch.org)", "[a](https://pytorch.org)"),
        ("check.md", "```python\na[0](b)\n```\n[a](view.md)", "```python\na[0](b)\n```\n[a](view.md)"),
    ],
)
def test_links_lead_to_where_their_files_are_on_the_site(uri, text, led):
    assert site_pages.led(text, uri) == led


def test_a_link_to_a_file_that_is_not_on_the_site_is_an_error():
    with pytest.raises(PluginError, match=r"docs/check.md links to ../Makefile"):
        site_pages.led("[a](../Makefile)", "check.md")
