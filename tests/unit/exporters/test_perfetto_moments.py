"""Every value of a counter is written once, at its time and in its order, whatever packet it goes with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_recordings import Made
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace
from trace_processor import TraceProcessor

from memexport import wire
from memexport.exporters import FileDestination
from memexport.exporters._perfetto_moments import Moments, Samples
from memexport.exporters._perfetto_packets import SLICE_END, alike, event_packet
from memexport.exporters.perfetto import PerfettoExporter
from memexport.model import Category, EventKind

COUNTER_TYPE = 4

Load = Callable[[Path], TraceProcessor]
Values = dict[int, list[tuple[int, int]]]
"""By track, the (time, value) pairs in their order."""


def samples(values: Values) -> list[Samples]:
    """As columns."""
    return [
        Samples(track, np.array([time for time, _ in pairs]), np.array([value for _, value in pairs]))
        for track, pairs in values.items()
        if pairs
    ]


def carriers(moments: Moments, times: list[int]) -> bytes:
    """ENDs at these times, with what they take."""
    time_ns = np.array(times, np.int64)
    carried = moments.take(time_ns)
    packets = []
    for rows in alike(moments.shape(carried)):
        event = wire.varint_field(9, SLICE_END) + moments.pieces(carried[rows])
        packets.append(wire.records(len(rows), event_packet(time_ns[rows], event)).tobytes())
    return b"".join(packets)


def read(encoded: bytes) -> Values:
    """What the packets say, in the importer's order: by time, then as they stand."""
    found: Values = defaultdict(list)
    for packet in sorted(Trace.FromString(encoded).packet, key=lambda packet: packet.timestamp):
        event = packet.track_event
        assert len(event.extra_counter_track_uuids) == len(event.extra_counter_values) <= 8
        if event.type == COUNTER_TYPE:
            found[event.track_uuid].append((packet.timestamp, event.counter_value))
        for track, value in zip(event.extra_counter_track_uuids, event.extra_counter_values, strict=True):
            found[track].append((packet.timestamp, value))
    return dict(found)


TIMES = st.lists(st.integers(0, 12), max_size=12)
VALUES = st.dictionaries(
    st.integers(1, 300),
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(-(2**53), 2**53) | st.integers(-2, 2)), max_size=8
    ).map(lambda pairs: sorted(pairs, key=lambda pair: pair[0])),
    max_size=12,
)


@given(VALUES, TIMES, TIMES)
def test_every_value_is_written_once_and_in_order(values: Values, ends: list[int], more: list[int]) -> None:
    """Also where a counter has several values at one time, and more counters change than a packet holds."""
    moments = Moments(samples(values))
    encoded = carriers(moments, ends) + carriers(moments, more) + moments.encode_rest()
    assert read(encoded) == {track: pairs for track, pairs in values.items() if pairs}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES, TIMES)
def test_the_importer_finds_every_value(
    load_trace: Load, tmp_path: Path, values: Values, ends: list[int]
) -> None:
    """Zeros, too, which it takes for the end of the values that a packet carries."""
    trace = Trace()
    for track in values:
        descriptor = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
        descriptor.uuid, descriptor.name, descriptor.counter.unit = track, str(track), 3
    trace.packet.add(trusted_packet_sequence_id=1).clock_snapshot.primary_trace_clock = 4
    moments = Moments(samples(values))
    path = tmp_path / "values.pftrace"
    path.write_bytes(trace.SerializeToString() + carriers(moments, ends) + moments.encode_rest())
    found: Values = defaultdict(list)
    sql = "SELECT name, ts, value FROM counter JOIN track ON track.id = track_id ORDER BY ts, counter.id"
    for row in load_trace(path).query(sql):
        found[int(row["name"])].append((row["ts"], int(row["value"])))
    assert found == {track: pairs for track, pairs in values.items() if pairs}


def test_values_of_one_time_are_one_packet() -> None:
    """And none, where a slice ends at that time."""
    moments = Moments(samples({1: [(5, 10), (7, 11)], 2: [(5, 20)]}))
    assert len(Trace.FromString(carriers(moments, [7, 8])).packet) == 2
    (packet,) = Trace.FromString(moments.encode_rest()).packet
    assert packet.timestamp == 5 and list(packet.track_event.extra_counter_values) == [20]


def test_of_several_packets_of_a_time_one_carries() -> None:
    """A packet that cannot is passed over."""
    moments = Moments(samples({1: [(5, 10)]}))
    assert moments.take(np.array([5, 5]), able=np.array([True, False])).tolist() == [0, -1]
    assert moments.take(np.array([5])).tolist() == [-1]


def training() -> Made:
    """Allocations inside and at the end of operators, and releases between them."""
    made = Made()
    for n in range(40):
        end = 100 * n + 50
        memory = {"device": 0, "category": Category.ACTIVATION, "address": n + 1, "size_bytes": n + 1}
        inside = end if n % 2 else end - 10
        made.add(EventKind.ALLOCATION, inside, name="aten.mm.default", allocated_bytes=n + 1, **memory)
        made.operator("aten.mm.default", end - 40, 40, thread="MainThread", device=0, allocated_bytes=n + 1)
        if n % 3:
            made.add(EventKind.RELEASE, end + 20, allocated_bytes=0, **memory)
    return made


def test_counters_do_not_depend_on_what_carries_them(load_trace: Load, tmp_path: Path) -> None:
    """With and without bars to ride on, batch by batch or joined, the importer finds the same samples."""
    sql = "SELECT name, ts, value FROM counter JOIN track ON track.id = track_id ORDER BY 1, 2, counter.id"
    made, found = training(), []
    for least in (0, 2**62):
        for atomic in (True, False):
            path = tmp_path / f"{least}-{atomic}.pftrace"
            exporter = PerfettoExporter(FileDestination(path, atomic=atomic), lifetimes_bytes=least)
            exporter.begin(made.info, made.tables)
            for batch in made.batches(7):
                exporter.write(batch)
            exporter.end(made.end)
            processor = load_trace(path)
            assert processor.import_problems() == []
            found.append(processor.query(sql))
    assert found[0] == found[1] == found[2] == found[3]
    allocated = [row["value"] for row in found[0] if row["name"] == "cuda:0 allocated"]
    assert max(allocated) == 40 and len(allocated) > 60
