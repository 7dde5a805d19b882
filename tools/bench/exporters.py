"""How fast the exporters write, each as a ratio to a named peer that writes the same events in the same run.

    python tools/bench/exporters.py [--operators 100000] [--repeat 3]

Perfetto's peer is perfetto's own `TraceProtoBuilder`: a BEGIN with two annotations and an END for each slice,
and a value for each change of a counter, all interned alike. The Chrome exporter's peer is `json.dump` of the
very document that it wrote, the JSONL exporter's `json.dumps` of each line. The best of the repeats counts,
for both; for speed, "× peer" is how many times as fast.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from perfetto.trace_builder.proto_builder import TraceProtoBuilder
from synthetic import synthetic_batches

from memexport.exporters import Exporter, FileDestination
from memexport.exporters.chrome import ChromeExporter
from memexport.exporters.jsonl import JsonlExporter
from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import UNKNOWN_SIZE, EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

BEGIN, END, COUNTER = 1, 2, 4
COUNTERS = ("allocated_bytes", "active_bytes", "reserved_bytes")


def seconds(action: Callable[[], object], repeat: int) -> float:
    """The best time of several."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def export(exporter: Exporter, info: RecordingInfo, tables: Tables, batches: Iterable[EventBatch]) -> None:
    """Write a whole recording."""
    exporter.begin(info, tables)
    for batch in batches:
        exporter.write(batch)
    exporter.end(RecordingEnd())


def slice_rows(events: EventBatch, origin_unix_ns: int) -> list[tuple[int, ...]]:
    """Begin, end, name, module and size of each slice, as Python integers."""
    slices = events.select((events.kind == EventKind.OPERATOR) | (events.kind == EventKind.SPAN))
    begin = slices.time_unix_ns - origin_unix_ns
    columns = (begin, begin + slices.duration_ns, slices.name, slices.module, slices.size_bytes)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def counter_rows(events: EventBatch, origin_unix_ns: int) -> list[tuple[int, int, int]]:
    """Track, time and value of each change of a counter."""
    times = events.time_unix_ns + np.maximum(events.duration_ns, 0) - origin_unix_ns
    rows: list[tuple[int, int, int]] = []
    for track, name in enumerate(COUNTERS, 3):
        known = (getattr(events, name) >= 0) & (events.kind != EventKind.MARKER)
        values = getattr(events, name)[known]
        changed = np.diff(values, prepend=-1) != 0
        rows += [
            (track, *row)
            for row in zip(times[known][changed].tolist(), values[changed].tolist(), strict=True)
        ]
    return rows


def build_with_peer(slices: list[tuple[int, ...]], counters: list[tuple[int, int, int]], path: Path) -> None:
    """The same packets, one after the other, through perfetto's builder; strings are taken as interned."""
    builder = TraceProtoBuilder()
    for begin, end, name, module, size in slices:
        packet = builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id, packet.sequence_flags = begin, 1, 2
        event = packet.track_event
        event.type, event.track_uuid, event.name_iid = BEGIN, 2, name
        event.category_iids.append(1)
        if module:
            annotation = event.debug_annotations.add()
            annotation.name_iid, annotation.string_value_iid = 1, module
        if size != UNKNOWN_SIZE:
            annotation = event.debug_annotations.add()
            annotation.name_iid, annotation.int_value = 2, size
        packet = builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id = end, 1
        packet.track_event.type, packet.track_event.track_uuid = END, 2
    for track, moment, value in counters:
        packet = builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id = moment, 1
        event = packet.track_event
        event.type, event.track_uuid, event.counter_value = COUNTER, track, value
    path.write_bytes(builder.serialize())


class Bench:
    """One recording in memory, and a folder to write to."""

    def __init__(self, operators: int, repeat: int, folder: Path) -> None:
        self._operators = operators
        self._repeat = repeat
        self._folder = folder
        self._info, self._tables, batches = synthetic_batches(operators)
        self._batches = list(batches)
        self._events = EventBatch.concat(self._batches)

    def perfetto(self) -> None:
        """Speed and size of the Perfetto exporter."""
        start = self._info.start_time_unix_ns or 0
        slices, counters = slice_rows(self._events, start), counter_rows(self._events, start)
        peer = self._folder / "peer.pftrace"
        peer_took = seconds(lambda: build_with_peer(slices, counters, peer), self._repeat)
        plain = functools.partial(PerfettoExporter, compress=False)
        for label, make, faster, size in (
            ("perfetto", PerfettoExporter, "≥ 6 ×", "≤ 35"),
            ("perfetto, not compressed", plain, "≥ 6 ×", ""),
        ):
            path, took = self._write("out.pftrace", make)
            self._speed(label, took, peer_took, faster)
            self._size(path, peer, size)

    def chrome(self) -> None:
        """Speed and size of the Chrome exporter."""
        path, took = self._write("out.json", ChromeExporter)
        document = json.loads(path.read_bytes())
        peer = self._folder / "peer.json"

        def dump() -> None:
            with peer.open("w") as stream:
                json.dump(document, stream)

        self._speed("chrome", took, seconds(dump, self._repeat), "≥ 4 ×")
        self._size(path, peer, "")

    def jsonl(self) -> None:
        """Speed and size of the JSONL exporter."""
        path, took = self._write("out.jsonl", JsonlExporter)
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        peer = self._folder / "peer.jsonl"

        def dump() -> None:
            with peer.open("w") as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows)

        self._speed("jsonl", took, seconds(dump, self._repeat), "≥ 1 ×")
        self._size(path, peer, "")

    def _write(self, name: str, make: Callable[[FileDestination], Any]) -> tuple[Path, float]:
        path = self._folder / name

        def once() -> None:
            export(make(FileDestination(path, overwrite=True)), self._info, self._tables, self._batches)

        once()  # what is imported on first use is not the exporter's speed
        return path, seconds(once, self._repeat)

    def _speed(self, label: str, took: float, peer: float, target: str) -> None:
        scale = 1e6 / self._operators
        values = f"{took * scale:10.2f}{peer * scale:10.2f}{peer / took:8.1f}{target:>8}"
        print(f"{label + ', µs/operator':38}{values}")

    def _size(self, path: Path, peer: Path, target: str) -> None:
        size, peer_size = (file.stat().st_size / self._operators for file in (path, peer))
        print(f"{'    bytes/operator':38}{size:10.1f}{peer_size:10.1f}{size / peer_size:8.2f}{target:>8}")


def main() -> None:
    """Run and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(options.operators, options.repeat, folder)
        print(f"{options.operators:,} operators with what they allocated, released, and their modules")
        print(f"{'':38}{'value':>10}{'peer':>10}{'× peer':>8}{'target':>8}")
        bench.perfetto()
        bench.chrome()
        bench.jsonl()


if __name__ == "__main__":
    main()
