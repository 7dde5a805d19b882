"""How large, how fast and how hungry the archive is, beside pickle.

python tools/bench/archive.py [OPERATORS]     default 1000000: 2.9 million events

Each figure is the best of three; one thread; the file lies in the folder for temporary files. "read" checks
every checksum and gives every column of every batch memory of its own, constant ones too.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
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


def copy_archive(path: Path) -> None:
    """Convert an archive into another, and print the peak of this process's resident memory (Linux)."""
    source = ArchiveSource(path)
    with tempfile.TemporaryDirectory() as folder:
        write_archive(Path(folder) / "copy.memx", (source.info, source.tables, source.batches()))
    # Not getrusage: what that gives a child begins at its parent's peak.
    status = Path("/proc/self/status").read_text()
    print(1024 * int(status.partition("VmHWM:")[2].split()[0]))


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
    print(f"{events} events, {count} of them operators\n")
    print(f"{'':24}{'archive':>12}{'pickle':>12}{'ratio':>9}{'target':>12}")
    row("bytes per event", size / events, peer_size / events, "≤ 12")
    row("write, million events/s", events / write / 1e6, events / peer_write / 1e6, "≥ 1")
    row("read, million events/s", events / read / 1e6, events / peer_read / 1e6, "≥ 5")
    print(f"\nlegacy pickle, operators only: {legacy / size:.2f} times the archive's size with all events")


def row(name: str, archive: float, peer: float, target: str) -> None:
    """One line of the table."""
    print(f"{name:24}{archive:12.2f}{peer:12.2f}{archive / peer:9.3f}{target:>12}")


def report_memory(folder: Path) -> None:
    """Convert an archive of 10 million events in a process of its own."""
    for operators in (340_000, 3_400_000):
        path = folder / "large.memx"
        events = write_archive(path, synthetic_batches(operators))
        command = [sys.executable, __file__, "--copy", str(path)]
        resident = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"archive to archive, {events} events: {resident / 2**20:.0f} MiB resident (target ≤ 400 MB)")


def main(arguments: list[str]) -> int:
    """The exit code."""
    if arguments[:1] == ["--copy"]:
        copy_archive(Path(arguments[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report(int(arguments[0]) if arguments else 1_000_000, Path(folder))
        report_memory(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
