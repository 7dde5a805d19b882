"""How fast the exporters write, each as a ratio to a named peer that writes the same events in the same run.

    python tools/bench/exporters.py [--operators 100000] [--repeat 3]

Perfetto's peer is perfetto's own `TraceProtoBuilder`: a BEGIN with two annotations and an END for each slice,
and a value for each change of a counter, all interned alike. The Chrome exporter's peer is `json.dump` of the
very document that it wrote. The best of the repeats counts, for both.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import sys
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
        peer = seconds(lambda: build_with_peer(slices, counters, self._folder / "peer"), self._repeat)
        for compress, target in ((False, 6.0), (True, 4.0)):
            make = functools.partial(PerfettoExporter, compress=compress)
            path, took = self._write("out.pftrace", make)
            label = f"perfetto, {'default' if compress else 'not compressed'}"
            self._report(label, took)
            print(f"  {peer / took:.1f} × TraceProtoBuilder (at least {target:.0f})")
            size = path.stat().st_size / self._operators
            print(f"  {size:.1f} bytes an operator" + (" (at most 35)" if compress else ""))

    def chrome(self) -> None:
        """Speed and size of the Chrome exporter."""
        path, took = self._write("out.json", ChromeExporter)
        document = json.loads(path.read_bytes())
        peer_path = self._folder / "peer.json"

        def dump() -> None:
            with peer_path.open("w") as stream:
                json.dump(document, stream)

        peer = seconds(dump, self._repeat)
        self._report("chrome", took)
        print(f"  {peer / took:.1f} × json.dump (at least 4)")
        print(f"  {path.stat().st_size / peer_path.stat().st_size:.2f} × its size (at most 1.1)")

    def jsonl(self) -> None:
        """Speed of the JSONL exporter."""
        _, took = self._write("out.jsonl", JsonlExporter)
        self._report("jsonl", took)

    def _write(self, name: str, make: Callable[[FileDestination], Any]) -> tuple[Path, float]:
        path = self._folder / name

        def once() -> None:
            export(make(FileDestination(path, overwrite=True)), self._info, self._tables, self._batches)

        once()  # what is imported on first use is not the exporter's speed
        return path, seconds(once, self._repeat)

    def _report(self, label: str, took: float) -> None:
        per_operator, rate = took / self._operators * 1e6, len(self._events) / took / 1e6
        print(f"{label}: {per_operator:.2f} µs an operator, {rate:.2f} million events/s")


def measure_memory(operators: int, folder: Path) -> None:
    """How much the peak of resident memory grows when a recording is four times as long."""
    for count in (operators, 4 * operators):
        destination = FileDestination(folder / "large.pftrace", overwrite=True)
        export(PerfettoExporter(destination), *synthetic_batches(count))
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"perfetto, {count} operators streamed: {resident:.0f} MiB resident at most")


def main() -> None:
    """Run and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure_memory(options.operators, folder)
        bench = Bench(options.operators, options.repeat, folder)
        print(f"{options.operators} operators, {sys.version.split()[0]}")
        bench.perfetto()
        bench.chrome()
        bench.jsonl()


if __name__ == "__main__":
    main()
