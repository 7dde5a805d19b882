"""What each part of a Perfetto trace costs: bytes, and time in Perfetto's own importer.

    python tools/bench/perfetto_load.py [--operators 300000] [--repeat 3]

Made-up traces come first: slices alone, then what an operator says, what counters say, tensor lifetimes, and
other orders and encodings of the same packets. Then traces that memexport wrote of a real recording. All
figures are per operator: bytes as they are and compressed as memexport compresses packets, and the processor
time of loading into a fresh trace processor (compiling excluded), the median of the repeats. A microsecond an
operator is a second for a million.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from exporters import NO_LIFETIMES, export
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from recorded import count_operators, recorded_batches

from memexport import wire
from memexport.exporters import FileDestination
from memexport.exporters._perfetto_packets import WITH_INTERNED, compressed, event_packet
from memexport.exporters.perfetto import PerfettoExporter
from memexport.trace_processor import TraceProcessor

BEGIN, END, COUNTER = 1, 2, 4
THREAD, ALLOCATED, CATEGORY, FIRST_LANE, LANES = 2, 3, 4, 10, 20
INCREMENTAL_CLOCK = 64
BATCH = 16_384
SIZES = np.array([0, 512, 1024, 1 << 16, 1 << 20])

Pieces = list[wire.Piece]
Fields = Sequence[wire.Piece]


class Operators:
    """Columns of made-up operators, one after the other, and their packets."""

    def __init__(self, count: int) -> None:
        random = np.random.default_rng(0)
        self.count = count
        self.gaps = random.integers(200, 20_000, 2 * count)
        times = np.cumsum(self.gaps)
        self.begin_ns, self.end_ns = times[::2], times[1::2]
        self.name, self.module = random.integers(1, 60, count), random.integers(1, 200, count)
        self.overload, self.size = random.integers(200, 210, count), random.choice(SIZES, count)
        moves = random.choice([-1, 1], (2, count)) * random.choice(SIZES[1:], (2, count))
        self.counters = np.abs(np.cumsum(moves, axis=1)) + (1 << 24)

    def annotations(self, wanted: int) -> Pieces:
        """The first so many of: module, overload, bytes, and a number that hardly ever comes again."""
        values = ((17, self.module), (17, self.overload), (4, self.size), (4, self.counters[0]))
        return [
            piece
            for name, (field, value) in enumerate(values[:wanted], 1)
            for piece in wire.message_field(4, wire.varint_field(1, name) + wire.varint_field(field, value))
        ]

    def begins(self, event: Fields = (), *, time_ns: Any = None, track: bool = True) -> wire.Records:
        """BEGINs with these fields."""
        event = [*event, *wire.varint_field(9, BEGIN), *wire.varint_field(10, self.name)]
        event += wire.varint_field(11, THREAD) if track else []
        return packets(self.begin_ns if time_ns is None else time_ns, event, WITH_INTERNED)

    def ends(self, event: Fields = (), *, time_ns: Any = None, track: bool = True) -> wire.Records:
        """ENDs with these fields."""
        event = [*wire.varint_field(9, END), *(wire.varint_field(11, THREAD) if track else []), *event]
        return packets(self.end_ns if time_ns is None else time_ns, event)

    def counter(self, number: int, event: Fields = ()) -> wire.Records:
        """A counter's value in a packet of its own at each end."""
        own = wire.varint_field(11, ALLOCATED + number) + wire.varint_field(30, self.counters[number])
        return packets(self.end_ns, [*wire.varint_field(9, COUNTER), *own, *event])

    def carried(self, *numbers: int) -> Pieces:
        """Values of counters beside an event."""
        return [
            piece
            for number in numbers
            for piece in (
                *wire.varint_field(31, ALLOCATED + number),
                *wire.varint_field(12, self.counters[number]),
            )
        ]

    def bars(self, annotations: Fields) -> tuple[wire.Records, wire.Records]:
        """Lifetimes that begin in an operator and end sixteen operators later, on lanes."""
        lane = wire.varint_field(11, FIRST_LANE + np.arange(self.count) % LANES)
        begin = [*annotations, *wire.varint_field(9, BEGIN), *wire.varint_field(10, self.name), *lane]
        end = [*wire.varint_field(9, END), *lane]
        released = np.append(self.end_ns[16:], np.full(min(16, self.count), self.end_ns[-1] + 1_000)) + 100
        return packets(self.begin_ns + 50, begin, WITH_INTERNED), packets(released, end)


def packets(time_ns: Any, event: Fields, flags: Fields = ()) -> wire.Records:
    """The packets of a column of events."""
    return wire.records(len(time_ns), event_packet(time_ns, list(event), flags))


def in_order(*columns: wire.Records) -> bytes:
    """Operator by operator, column by column."""
    places = np.arange(len(columns[0])) * len(columns)
    woven = [(places + number, column) for number, column in enumerate(columns)]
    return wire.weave(len(places) * len(columns), woven)


def by_kind(*columns: wire.Records) -> bytes:
    """Batch by batch, as memexport writes: in each all ENDs, then all BEGINs, and so on."""
    firsts = range(0, len(columns[0]), BATCH)
    return b"".join(column[first : first + BATCH].tobytes() for first in firsts for column in columns)


def head(change: Callable[[Any], None] | None = None) -> bytes:
    """The packets that all of these traces begin with; `change` may add to the first one."""
    trace = Trace()
    packet = trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1)
    packet.clock_snapshot.primary_trace_clock = 4
    for number in range(1, 212):
        packet.interned_data.event_names.add(iid=number, name=f"aten::operator{number}")
        packet.interned_data.debug_annotation_string_values.add(iid=number, str=b"layers.%d.fc" % number)
    for number, name in enumerate(("module", "overload", "bytes_delta", "allocated"), 1):
        packet.interned_data.debug_annotation_names.add(iid=number, name=name)
    packet.interned_data.event_categories.add(iid=1, name="operator")
    if change is not None:
        change(packet)
    tracks = [trace.packet.add(trusted_packet_sequence_id=1).track_descriptor for _ in range(4 + LANES)]
    tracks[0].uuid = tracks[0].process.pid = 1
    tracks[1].uuid, tracks[1].thread.pid, tracks[1].thread.tid = THREAD, 1, 1
    for uuid, track in zip(
        (ALLOCATED, CATEGORY, *range(FIRST_LANE, FIRST_LANE + LANES)), tracks[2:], strict=True
    ):
        track.uuid, track.parent_uuid = uuid, 1
        track.name = "lifetimes" if uuid >= FIRST_LANE else f"counter {uuid}"
        if uuid < FIRST_LANE:
            track.counter.unit = 3
    encoded: bytes = trace.SerializeToString()
    return encoded


def with_clock(packet: Any) -> None:
    """Timestamps say how much later than the one before."""
    packet.clock_snapshot.clocks.add(clock_id=INCREMENTAL_CLOCK, timestamp=0, is_incremental=True)
    packet.clock_snapshot.clocks.add(clock_id=4, timestamp=0)
    packet.trace_packet_defaults.timestamp_clock_id = INCREMENTAL_CLOCK


def with_track(packet: Any) -> None:
    """A packet without a track means the thread."""
    packet.trace_packet_defaults.track_event_defaults.track_uuid = THREAD


def made_up(made: Operators) -> Iterator[tuple[str, bytes]]:
    """What it is, and the trace."""
    operator = wire.varint_field(3, 1)
    said = [*operator, *made.annotations(3)]
    begins, ends = made.begins(said), made.ends()
    yield "a slice: name, track, BEGIN and END", head() + in_order(made.begins(), ends)
    yield "  and its category", head() + in_order(made.begins(operator), ends)
    for count, label in enumerate(("module", "module, overload", "module, overload, bytes"), 1):
        yield f"  and {label}", head() + in_order(made.begins([*operator, *made.annotations(count)]), ends)
    yield "  and a number of its own", head() + in_order(made.begins([*operator, *made.annotations(4)]), ends)
    yield "with 3 annotations, by kind", head() + by_kind(ends, begins)
    yield "  all ENDs before all BEGINs", head() + ends.tobytes() + begins.tobytes()
    gaps = made.gaps[::2], made.gaps[1::2]
    delta = in_order(made.begins(said, time_ns=gaps[0]), made.ends(time_ns=gaps[1]))
    yield "  an incremental clock", head(with_clock) + delta
    untracked = by_kind(made.ends(track=False), made.begins(said, track=False))
    yield "  a default track", head(with_track) + untracked
    yield "  and a counter, in packets", head() + by_kind(ends, begins, made.counter(0))
    yield "  and two counters, in packets", head() + by_kind(ends, begins, made.counter(0), made.counter(1))
    both = made.counter(0, made.carried(1))
    yield "  and two counters, in one packet", head() + by_kind(ends, begins, both)
    carrying = made.ends(made.carried(0, 1))
    yield "  and two counters, on the END", head() + by_kind(carrying, begins)
    yield "    and bare lifetimes", head() + by_kind(carrying, begins, *made.bars(()))
    yield (
        "    and lifetimes with 3 annotations",
        head() + by_kind(carrying, begins, *made.bars(made.annotations(3))),
    )


def load_seconds(path: Path) -> float:
    """Processor time."""
    with TraceProcessor() as processor:
        start = time.process_time()
        processor.load(path)
        return time.process_time() - start


class Table:
    """Measures and prints line by line."""

    def __init__(self, folder: Path, repeat: int) -> None:
        self._path = folder / "trace.pftrace"
        self._repeat = repeat
        print(f"{'':50}{'bytes':>8}{'zlib':>8}{'load, µs':>9}")
        print(f"{'(target: everything, and every lifetime)':50}{40:8.1f}{12:8.1f}{3:9.2f}")

    def line(self, label: str, trace: bytes, operators: int) -> None:
        """One trace."""
        self._path.write_bytes(trace)
        load = statistics.median(load_seconds(self._path) for _ in range(self._repeat))
        part = BATCH * (len(trace) // operators)
        packed = sum(len(compressed(trace[first : first + part])) for first in range(0, len(trace), part))
        print(
            f"{label:50}{len(trace) / operators:8.1f}{packed / operators:8.1f}{load / operators * 1e6:9.2f}",
            flush=True,
        )


def recorded(table: Table, folder: Path, operators: int) -> None:
    """Traces that memexport writes of a real recording."""
    info, tables, batches = recorded_batches(operators)
    count = count_operators(batches)
    path = folder / "written.pftrace"
    for what, least in (("slices, counters", NO_LIFETIMES), ("and every lifetime", 0)):
        for compress in (False, True):
            destination = FileDestination(path, overwrite=True)
            exporter = PerfettoExporter(destination, lifetimes_bytes=least, compress=compress)
            export(exporter, info, tables, batches)
            how = "compressed packets" if compress else "packets"
            table.line(f"memexport: {what}, {how}", path.read_bytes(), count)
            if not compress:
                whole = gzip.compress(path.read_bytes(), 2)
                table.line(f"memexport: {what}, gzip", whole, count)


def main() -> None:
    """Run and print everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", type=int, default=300_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        table = Table(Path(name), options.repeat)
        for label, trace in made_up(Operators(options.operators)):
            table.line(label, trace, options.operators)
        recorded(table, Path(name), options.operators)


if __name__ == "__main__":
    main()
