"""How fast the exporters write, each as a ratio to a named peer that writes the same events in the same run.

    python tools/bench/exporters.py [--operators 100000] [--repeat 3] [--synthetic]

What is written is a real recording of the demo's transformer, or with `--synthetic` a stream with almost
twice as many allocations and releases per operator.

Perfetto's peer is perfetto's own `TraceProtoBuilder`, which writes the very packets that the exporter wrote,
uncompressed, all interned alike. The Chrome exporter's peer is `json.dump` of the
very document that it wrote, the JSONL exporter's `json.dumps` of each line, the CSV
exporter's `csv.DictWriter` of the same rows. The best of the repeats counts,
for both; for speed, "× peer" is how many times as fast.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from perfetto.trace_builder.proto_builder import TraceProtoBuilder
from recorded import count_operators, recorded_batches
from synthetic import synthetic_batches

from memexport.exporters import Exporter, FileDestination
from memexport.exporters.chrome import ChromeExporter
from memexport.exporters.csv import CsvExporter
from memexport.exporters.jsonl import JsonlExporter
from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

END, COUNTER = 2, 4
NO_LIFETIMES = 2**62


def seconds(repeat: int, *actions: Callable[[], object]) -> list[float]:
    """The best processor time of each, run in turns: what else the machine does then meets them alike."""
    best = [float("inf")] * len(actions)
    for _ in range(repeat):
        for number, action in enumerate(actions):
            start = time.process_time()
            action()
            best[number] = min(best[number], time.process_time() - start)
    return best


def export(exporter: Exporter, info: RecordingInfo, tables: Tables, batches: Iterable[EventBatch]) -> None:
    """Write a whole recording."""
    exporter.begin(info, tables)
    for batch in batches:
        exporter.write(batch)
    exporter.end(RecordingEnd())


def packet_rows(path: Path) -> list[tuple[Any, ...]]:
    """The track events of an uncompressed trace as plain Python values.

    Type, time, track, counter value, name, category, the annotations as (name, is text, value), and the
    values of counters that the packet carries, as (track, value). What a packet does not have is 0 or empty.
    """
    rows = []
    for packet in Trace.FromString(path.read_bytes()).packet:
        event = packet.track_event
        if packet.HasField("track_event") and not event.name:
            annotations = [
                (a.name_iid, bool(a.string_value_iid), a.string_value_iid or a.int_value)
                for a in event.debug_annotations
            ]
            carried = list(zip(event.extra_counter_track_uuids, event.extra_counter_values, strict=True))
            category = event.category_iids[0] if event.category_iids else 0
            what = event.type, packet.timestamp, event.track_uuid, event.counter_value
            rows.append((*what, event.name_iid, category, annotations, carried))
    return rows


def build_with_peer(rows: list[tuple[Any, ...]], path: Path) -> None:
    """The same packets, one after the other, through perfetto's builder; strings are taken as interned."""
    builder = TraceProtoBuilder()
    for kind, moment, track, value, name, category, attached, carried in rows:
        packet = builder.add_packet()
        packet.timestamp, packet.trusted_packet_sequence_id = moment, 1
        event = packet.track_event
        event.type = kind
        if track:
            event.track_uuid = track
        for counter, counted in carried:
            event.extra_counter_track_uuids.append(counter)
            event.extra_counter_values.append(counted)
        if kind == COUNTER:
            event.counter_value = value
        elif kind != END:
            packet.sequence_flags, event.name_iid = 2, name
            if category:
                event.category_iids.append(category)
            for name_iid, is_text, content in attached:
                annotation = event.debug_annotations.add()
                annotation.name_iid = name_iid
                if is_text:
                    annotation.string_value_iid = content
                else:
                    annotation.int_value = content
    path.write_bytes(builder.serialize())


class Bench:
    """One recording in memory, and a folder to write to."""

    def __init__(self, operators: int, repeat: int, folder: Path, *, synthetic: bool) -> None:
        self._repeat = repeat
        self._folder = folder
        self._info, self._tables, batches = (synthetic_batches if synthetic else recorded_batches)(operators)
        self._batches = list(batches)
        self._operators = count_operators(self._batches)
        self._events = EventBatch.concat(self._batches)

    def describe(self) -> None:
        """Say what is written."""
        print(f"{self._operators:,} operators, {len(self._events):,} events")

    def perfetto(self) -> None:
        """Speed and size of the Perfetto exporter, without tensor lifetimes and with all of them."""
        for what, least, speed, size in (
            ("slices and counters", NO_LIFETIMES, "≥ 6 ×", "≤ 35"),
            ("with lifetimes", 0, "≥ 4 ×", "≤ 12"),
        ):
            make = functools.partial(PerfettoExporter, lifetimes_bytes=least)
            plain, write_plain = self._writer("plain.pftrace", functools.partial(make, compress=False))
            compressed, write_compressed = self._writer("out.pftrace", make)
            peer = self._folder / "peer.pftrace"
            write_peer = functools.partial(build_with_peer, packet_rows(plain), peer)
            took, took_compressed, peer_took = seconds(
                self._repeat, write_plain, write_compressed, write_peer
            )
            self._speed(f"perfetto, {what}, not compressed", took, peer_took, "≥ 8 ×")
            self._size(plain, peer, "≤ 40")
            self._speed(f"perfetto, {what}", took_compressed, peer_took, speed)
            self._size(compressed, peer, size)

    def chrome(self) -> None:
        """Speed and size of the Chrome exporter."""
        path, write = self._writer("out.json", ChromeExporter)
        document = json.loads(path.read_bytes())
        peer = self._folder / "peer.json"

        def dump() -> None:
            with peer.open("w") as stream:
                json.dump(document, stream)

        self._speed("chrome", *seconds(self._repeat, write, dump), "≥ 4 ×")
        self._size(path, peer, "")

    def jsonl(self) -> None:
        """Speed and size of the JSONL exporter."""
        path, write = self._writer("out.jsonl", JsonlExporter)
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        peer = self._folder / "peer.jsonl"

        def dump() -> None:
            with peer.open("w") as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows)

        self._speed("jsonl", *seconds(self._repeat, write, dump), "≥ 1 ×")
        self._size(path, peer, "")

    def csv(self) -> None:
        """Speed and size of the CSV exporter."""
        path, write = self._writer("out.csv", CsvExporter)
        as_json, _ = self._writer("rows.jsonl", JsonlExporter)
        rows = [json.loads(line) for line in as_json.read_bytes().splitlines()]
        columns = [name for name in rows[0] if all(name in row for row in rows)]
        peer = self._folder / "peer.csv"

        def dump() -> None:
            with peer.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, columns, extrasaction="ignore")
                writer.writeheader()
                writer.writerows(rows)

        self._speed("csv", *seconds(self._repeat, write, dump), "≥ 2 ×")
        self._size(path, peer, "")

    def _writer(self, name: str, make: Callable[[FileDestination], Any]) -> tuple[Path, Callable[[], None]]:
        """The file, written once so that first imports do not count, and what writes it again."""
        path = self._folder / name

        def write() -> None:
            export(make(FileDestination(path, overwrite=True)), self._info, self._tables, self._batches)

        write()
        return path, write

    def _speed(self, label: str, took: float, peer: float, target: str) -> None:
        scale = 1e6 / self._operators
        values = f"{took * scale:10.2f}{peer * scale:10.2f}{peer / took:8.1f}{target:>8}"
        print(f"{label + ', µs/operator':58}{values}")

    def _size(self, path: Path, peer: Path, target: str) -> None:
        size, peer_size = (file.stat().st_size / self._operators for file in (path, peer))
        print(f"{'    bytes/operator':58}{size:10.1f}{peer_size:10.1f}{size / peer_size:8.2f}{target:>8}")


def main() -> None:
    """Run and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--synthetic", action="store_true", help="not a real recording but a made-up stream")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(options.operators, options.repeat, folder, synthetic=options.synthetic)
        bench.describe()
        print(f"{'':58}{'value':>10}{'peer':>10}{'× peer':>8}{'target':>8}")
        bench.perfetto()
        bench.chrome()
        bench.jsonl()
        bench.csv()


if __name__ == "__main__":
    main()
