"""What the index of an archive says, and what is there."""

from __future__ import annotations

from pathlib import Path

from memexport.archive.framing import RecordReader
from memexport.archive.v1 import archive_pb2 as pb


def batches_at_index(path: Path) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Offset and events of every batch in the file, and of every entry of its index."""
    found, entries = [], []
    with path.open("rb") as stream:
        for frame in RecordReader(path, stream, path.stat().st_size):
            record = pb.Record.FromString(frame.body)
            if record.WhichOneof("body") == "batch":
                found.append((frame.offset, record.batch.event_count))
            elif record.WhichOneof("body") == "index":
                entries = [(entry.offset, entry.event_count) for entry in record.index.batches]
    return found, entries
