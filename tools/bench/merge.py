"""How fast the recordings of many ranks are merged into one, and in how much memory.

    python tools/bench/merge.py [--ranks 64] [--operators 100000]

Its peer is reading the same files one after another, which no merge can beat.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from synthetic import synthetic_batches

import memexport
from memexport import pipeline
from memexport.exporters import FileDestination
from memexport.exporters.archive import ArchiveExporter
from memexport.model import EventBatch, RecordingEnd


def write(path: Path, rank: int, world_size: int, operators: int) -> None:
    """One rank's recording."""
    info, tables, batches = synthetic_batches(operators)
    exporter = ArchiveExporter(FileDestination(path))
    exporter.begin(dataclasses.replace(info, rank=rank, world_size=world_size), tables)
    for batch in batches:
        # No two ranks do the same at the same nanosecond.
        columns = {**batch.columns(), "rank": rank, "time_unix_ns": batch.time_unix_ns + 37 * rank}
        exporter.write(EventBatch(**columns))
    exporter.end(RecordingEnd())


def one_after_another(paths: list[Path]) -> int:
    """Read every file; the events."""
    events = 0
    for path in paths:
        with memexport.open(path) as recording:
            events += sum(map(len, recording.batches()))
    return events


def merged(paths: list[Path]) -> int:
    """Read all files as one; the events."""
    with pipeline.merge(paths) as recording:
        return sum(map(len, recording.batches()))


def converted(paths: list[Path]) -> int:
    """Write all files into one trace."""
    with pipeline.merge(paths) as recording:
        memexport.convert(recording, paths[0].parent / "all.pftrace")
    return 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--operators", type=int, default=100_000, help="of each rank")
    options = parser.parse_args()
    rows: list[tuple[str, Callable[[list[Path]], int], str]] = [
        ("one after another", one_after_another, ""),
        ("merged", merged, "≥ 1 million"),
        ("merged, to .pftrace", converted, ""),
    ]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"run-{rank}.memx" for rank in range(options.ranks)]
        for rank, path in enumerate(paths):
            write(path, rank, options.ranks, options.operators)
        print(f"{'':22}{'seconds':>9}{'operators/s':>14}{'peak MB':>9}  target")
        for name, action, target in rows:
            began = time.process_time()
            action(paths)
            seconds = time.process_time() - began
            rate = options.ranks * options.operators / seconds
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
            print(f"{name:22}{seconds:9.2f}{rate:14,.0f}{peak:9.0f}  {target}")


if __name__ == "__main__":
    main()
