"""How long the command line takes to start, beside Python itself.

    python tools/bench/startup.py [--runs 21]

The commands take turns, and a command's figure is the median of its runs. Target: `memexport --help` ≤ 150 ms
more than `python -c pass`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET_MS = 150
PEER = "python -c pass"
LEGACY = Path(__file__).resolve().parents[2] / "tests/data/legacy_conv.pickle"


def milliseconds(command: list[str]) -> float:
    """How long the command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return 1e3 * (time.perf_counter() - start)


def commands(folder: Path) -> dict[str, list[str]]:
    """What to run, by what it is called in the table."""
    # The installed command, as people start it, not `python -m`.
    memexport = str(Path(sys.executable).with_name("memexport"))
    small = str(folder / "small.memx")
    subprocess.run([memexport, "convert", str(LEGACY), "-o", small], check=True, capture_output=True)
    return {
        PEER: [sys.executable, "-c", "pass"],
        "memexport --help": [memexport, "--help"],
        "memexport summary small.memx": [memexport, "summary", small],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=21)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        todo = commands(Path(folder))
        for command in todo.values():
            milliseconds(command)  # the first run reads the files from the disk, and compiles
        times: dict[str, list[float]] = {name: [] for name in todo}
        for _ in range(options.runs):
            for name, command in todo.items():
                times[name].append(milliseconds(command))
    peer = statistics.median(times[PEER])
    print(f"{'':30}{'ms':>8}{'more than python':>18}{'target':>10}")
    for name, measured in times.items():
        median, target = statistics.median(measured), f"≤ {TARGET_MS}" if "--help" in name else ""
        print(f"{name:30}{median:8.0f}{median - peer:18.0f}{target:>10}")


if __name__ == "__main__":
    main()
