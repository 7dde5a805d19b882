"""How long a recording takes to become a page or a picture, and how much memory.

    python tools/bench/plot.py [--events 10000000]

Beside `memexport summary`, which folds the same events, and beside drawing every event: pandas reads the
counter from a Parquet file and matplotlib plots it. Targets: a million events in under 3 s, a page under 3 MB
of any number of events, memory that does not grow with them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from memory import in_child

MEASURED = """
import atexit, resource, sys, time
def say():
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(time.process_time(), used.ru_maxrss, file=sys.stderr)
atexit.register(say)
"""
COMMAND = "from memexport.cli import main; main(standalone_mode=False)"
# What is written without memexport: the counter of every event, as one line.
EVERY_EVENT = """
import pandas, matplotlib; matplotlib.use("Agg")
from matplotlib import pyplot
table = pandas.read_parquet(sys.argv[1], columns=["time_unix_ns", "allocated_bytes"])
table.plot(x="time_unix_ns", y="allocated_bytes", figsize=(12, 6)); pyplot.savefig(sys.argv[2])
"""


class Run(NamedTuple):
    """One program: its wall and processor time, its peak of resident memory, the size of what it wrote."""

    seconds: float
    processor_seconds: float
    mb: float
    output_mb: float


def measured(code: str, *arguments: str | Path, output: Path | None = None) -> Run:
    """Run it in a process of its own."""
    command = [sys.executable, "-c", MEASURED + code, *map(str, arguments)]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    processor, peak = done.stderr.splitlines()[-1].split()
    # Linux counts kibibytes, macOS bytes.
    peak_bytes = int(peak) * (1 if sys.platform == "darwin" else 1024)
    written = output.stat().st_size if output else 0
    return Run(seconds, float(processor), peak_bytes / 1e6, written / 1e6)


def measure(folder: Path, events: int) -> None:
    """Print a line for each way, at this number of events."""
    archive = folder / f"{events}.memx"
    made = int(in_child("--make", str(archive), str(events))["events"])
    page, png, table, every = (folder / name for name in ("a.html", "a.png", "a.parquet", "every.png"))
    rows = {
        "summary": measured(COMMAND, "summary", archive),
        "plot, page": measured(COMMAND, "plot", archive, "-o", page, "--force", output=page),
        "plot, PNG": measured(COMMAND, "plot", archive, "-o", png, "--force", output=png),
    }
    measured(COMMAND, "convert", archive, "-o", table, "--force")
    rows["pandas, every event"] = measured(EVERY_EVENT, table, every, output=every)
    for name, run in rows.items():
        ratio = run.processor_seconds / rows["summary"].processor_seconds
        print(
            f"{name:22}{made:12,}{run.seconds:9.2f}{run.processor_seconds:9.2f}{ratio:11.2f}"
            f"{run.mb:9.0f}{run.output_mb:11.2f}",
            flush=True,
        )


def main() -> None:
    """Measure a tenth of the events, and all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    options = parser.parse_args()
    print(f"{'':22}{'events':>12}{'seconds':>9}{'of CPU':>9}{'× summary':>11}{'peak MB':>9}{'out MB':>11}")
    with tempfile.TemporaryDirectory() as name:
        for events in (options.events // 10, options.events):
            measure(Path(name), events)


if __name__ == "__main__":
    main()
