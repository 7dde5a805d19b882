"""How large and how fast the archive is, beside pickle.

    python tools/bench/archive.py [--operators 1000000]

There are 2.9 events to an operator. Each figure is the best of three; one thread; the file lies in the folder
for temporary files. "read" checks every checksum and gives every column of every batch memory of its own,
constant ones too.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from synthetic import synthetic_batches

from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.model import EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables
from memexport.sources.archive import ArchiveSource

LEGACY_BYTES_PER_OPERATOR = 72
"""What torch's MemoryTracker.save_stats takes in its pickle."""

Recording = tuple[RecordingInfo, Tables, Iterable[EventBatch]]


def write_archive(path: Path, recording: Recording) -> int:
    """Write the recording; its number of events."""
    info, tables, batches = recording
    events = 0
    exporter = ArchiveExporter(FileDestination(path, overwrite=True))
    exporter.begin(info, tables)
    for batch in batches:
        exporter.write(batch)
        events += len(batch)
    exporter.end(RecordingEnd())
    return events


def read_archive(path: Path) -> None:
    """Read all of it."""
    source = ArchiveSource(path)
    for batch in source.batches():
        for column in batch.columns().values():
            np.ascontiguousarray(column)
    source.close()


def write_pickle(path: Path, recording: Recording) -> None:
    """The same columns, each whole, as one pickle."""
    columns = EventBatch.concat(list(recording[2])).columns()
    with path.open("wb") as stream:
        pickle.dump((columns, list(recording[1].strings)), stream, protocol=5)


def read_pickle(path: Path) -> None:
    """Load it."""
    with path.open("rb") as stream:
        pickle.load(stream)  # noqa: S301 - this program wrote it


def best(call: Callable[[], object]) -> float:
    """Seconds, the least of three."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def report(operators: int, folder: Path) -> None:
    """Measure and print."""
    archive, peer = folder / "bench.memx", folder / "bench.pickle"
    info, tables, stream = synthetic_batches(operators)
    batches = list(stream)
    recording = (info, tables, batches)
    events = sum(map(len, batches))
    count = sum(int(np.count_nonzero(batch.kind == EventKind.OPERATOR)) for batch in batches)
    write = best(lambda: write_archive(archive, recording))
    read = best(lambda: read_archive(archive))
    peer_write = best(lambda: write_pickle(peer, recording))
    peer_read = best(lambda: read_pickle(peer))
    size, peer_size = archive.stat().st_size, peer.stat().st_size
    legacy = LEGACY_BYTES_PER_OPERATOR * count
    print(f"{events:,} events, {count:,} of them operators")
    print(f"{'':30}{'archive':>10}{'pickle':>10}{'ratio':>8}{'target':>8}")
    row("bytes per event", size / events, peer_size / events, "≤ 12")
    row("write, million events/s", events / write / 1e6, events / peer_write / 1e6, "≥ 1")
    row("read, million events/s", events / read / 1e6, events / peer_read / 1e6, "≥ 5")
    print(f"a legacy pickle of the operators alone takes {legacy / size:.1f} × the archive of all events")


def row(name: str, archive: float, peer: float, target: str) -> None:
    """One line of the table."""
    print(f"{name:30}{archive:10.2f}{peer:10.2f}{archive / peer:8.2f}{target:>8}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(options.operators, Path(folder))


if __name__ == "__main__":
    main()
