"""How much memory converting an archive takes, into each format, and whether that grows with the events.

    python tools/bench/memory.py [--events 10000000]

Each conversion is `memexport.convert` in a process of its own, which reports the peak of its resident memory;
first of a tenth of the events, then of all. Target: ≤ 400 MB at any number of events.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUTPUTS = ("copy.memx", "trace.pftrace", "trace.json", "events.jsonl")
EVENTS_PER_OPERATOR = 2.947
TARGET_MB = 400


def make(path: Path, events: int) -> dict[str, float]:
    """Write an archive of about this many events; how many they are."""
    from synthetic import synthetic_batches

    from memexport.exporters import FileDestination
    from memexport.exporters.archive import ArchiveExporter
    from memexport.model import RecordingEnd

    info, tables, batches = synthetic_batches(round(events / EVENTS_PER_OPERATOR))
    exporter = ArchiveExporter(FileDestination(path))
    exporter.begin(info, tables)
    made = 0
    for batch in batches:
        exporter.write(batch)
        made += len(batch)
    exporter.end(RecordingEnd())
    return {"events": made}


def convert(source: Path, output: Path) -> dict[str, float]:
    """Convert, and say how long that took and the most memory that this process ever had resident."""
    import memexport

    start = time.perf_counter()
    memexport.convert(source, output)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts kibibytes, macOS bytes.
    return {"seconds": seconds, "mb": peak * (1 if sys.platform == "darwin" else 1024) / 1e6}


def in_child(*arguments: str) -> dict[str, float]:
    """What another run of this program prints.

    A child's peak begins at what its parent has resident when it starts it. So this process stays small:
    it imports neither NumPy nor memexport.
    """
    command = [sys.executable, __file__, *arguments]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(printed)
    return result


def measure(events: int) -> None:
    """Print a line for each format, at a tenth of the events and at all of them."""
    print(f"{'archive to':16}{'events':>12}{'seconds':>10}{'million/s':>11}{'peak MB':>9}{'target':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archives = [folder / "tenth.memx", folder / "whole.memx"]
        made = [
            int(in_child("--make", str(archive), str(count))["events"])
            for archive, count in zip(archives, (events // 10, events), strict=True)
        ]
        for output in OUTPUTS:
            for archive, count in zip(archives, made, strict=True):
                done = in_child("--convert", str(archive), str(folder / output))
                (folder / output).unlink()
                rate = count / done["seconds"] / 1e6
                print(
                    f"{Path(output).suffix:16}{count:12,}{done['seconds']:10.1f}{rate:11.2f}"
                    f"{done['mb']:9.0f}{f'≤ {TARGET_MB}':>8}",
                    flush=True,
                )


def main() -> None:
    """Measure; or, as a child of that, do one thing and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--make", nargs=2, metavar=("ARCHIVE", "EVENTS"), help=argparse.SUPPRESS)
    parser.add_argument("--convert", nargs=2, type=Path, metavar=("IN", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        print(json.dumps(make(Path(options.make[0]), int(options.make[1]))))
    elif options.convert:
        print(json.dumps(convert(*options.convert)))
    else:
        measure(options.events)


if __name__ == "__main__":
    main()
