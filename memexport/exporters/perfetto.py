"""Writes Perfetto traces (`.pftrace`): slices, counters, tensor lifetimes, markers, the peak's flamegraph."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.exporters import _perfetto_packets as packets
from memexport.exporters import _titles
from memexport.exporters._counters import CounterChanges
from memexport.exporters._facts import Facts, about_end, about_recording
from memexport.exporters._gather import Gathered
from memexport.exporters._perfetto_bars import encode_bars
from memexport.exporters._perfetto_interning import Interning, protobuf_text, write_vocabulary
from memexport.exporters._perfetto_memory import MemoryTracks
from memexport.exporters._perfetto_moments import Moments, Samples
from memexport.exporters._perfetto_slices import SliceColumns
from memexport.exporters._perfetto_tracks import Tracks
from memexport.exporters._timeline import Timeline
from memexport.exporters.destination import Destination, FileDestination
from memexport.model import EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

_MONOTONIC_COARSE: Final = 4
_INSTANT: Final = 3
_EVENTS_AT_ONCE: Final = 16_384
"""Batches of 8 192 take a quarter more time, of 32 768 a tenth less, and keep twice as much in memory."""


class PerfettoExporter:
    """One trace for ui.perfetto.dev and trace_processor.

    All packets are on one sequence: names and values are interned for all ranks together. Each batch is one
    compressed packet, so a file that was cut holds every batch before the cut. Where a file is put in place
    only when it is complete, batches are joined first: larger ones are written faster.

    Slices of a thread nest as their times do; those that overlap otherwise, or tie so that a stack cannot
    hold them, lie on a track beside it. What counters say goes with a slice that begins or ends at that time;
    each of their changes is there. What lived when `allocated` was highest is a heap dump, written at the
    end; the UI opens it.

    Args:
        destination: the file.
        compress: write zlib-compressed packets: a quarter of the size, loaded as fast.
        lifetimes_bytes: storages of at least this size are drawn from allocation to release; 0: all of them.
            None: those large enough to be seen, see `SizeFloor`.
        step_peaks: dump what lived at the peak of each step too. The UI opens the earliest dump on load, so
            then that is the first step's and not the highest one.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        compress: bool = True,
        lifetimes_bytes: int | None = None,
        step_peaks: bool = False,
    ) -> None:
        self._destination = destination
        self._compress = compress
        self._lifetimes_bytes = lifetimes_bytes
        self._step_peaks = step_peaks
        self._gathered = Gathered(0 if _is_written_in_place(destination) else _EVENTS_AT_ONCE)
        self._counters = CounterChanges()
        self._last_time_ns = 0

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file. Everything else waits for the first batch, which says how many ranks there are."""
        self._info = info
        self._timeline = Timeline(info)
        self._interning = Interning(tables)
        self._tables = tables
        self._tracks: Tracks | None = None
        self._destination.open()

    def write(self, batch: EventBatch) -> None:
        """Take a batch; write its packets now, or together with those of the batches after it."""
        ready = self._gathered.add(batch)
        if ready is not None:
            self._encode(ready)

    def _encode(self, batch: EventBatch) -> None:
        """Write the batch's packets, and before them the names and tracks that they are the first to use."""
        tracks = self._tracks or self._start(batch)
        begin_ns, end_ns = self._timeline.place(batch)
        self._last_time_ns = max(self._last_time_ns, int(end_ns.max(initial=0)))
        counters = [
            Samples(tracks.counter(key), times, values)
            for key, times, values in self._counters.of(batch, end_ns)
        ]
        memory = self._memory.draw(batch, end_ns)
        moments = Moments(counters + memory.samples)
        events = (
            self._slices.encode(batch, begin_ns, end_ns, moments),
            self._encode_markers(batch, begin_ns, tracks),
            *(encode_bars(bars, moments) for bars in memory.bars),
            moments.encode_rest(),
            *memory.dumps,
        )
        self._put(b"".join((self._descriptions(tracks), *events)))

    def end(self, end: RecordingEnd) -> None:
        """Write what waits and what is known only now, and put the file in its place."""
        waiting = self._gathered.rest()
        if waiting is not None:
            self._encode(waiting)
        tracks = self._tracks or self._start(EventBatch(kind=np.empty(0, np.uint8)))
        facts = about_end(end, self._counters.clipped_values, self._timeline.clipped_events)
        facts = {**facts, "tensor lifetimes": self._memory.omitted()}
        last = self._encode_facts("recording end", self._last_time_ns, tracks, facts)
        last += self._memory.encode_last_peaks()
        self._put(self._descriptions(tracks) + last)
        self._destination.commit()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._destination.discard()

    def _start(self, batch: EventBatch) -> Tracks:
        """Write the packets that a trace begins with."""
        tracks = self._tracks = Tracks(
            self._info, self._tables.strings, _has_several_ranks(self._info, batch)
        )
        self._slices = SliceColumns(self._tables.strings, self._interning, tracks)
        self._memory = MemoryTracks(
            self._tables, self._interning, tracks, self._lifetimes_bytes, self._step_peaks
        )
        self._timeline.place(batch)
        facts = about_recording(self._info, self._timeline.origin_unix_ns or 0)
        start = self._encode_facts("recording", 0, tracks, facts)
        self._destination.write(_first_packets())
        self._put(self._descriptions(tracks) + start)
        return tracks

    def _encode_markers(self, batch: EventBatch, begin_ns: npt.NDArray[np.int64], tracks: Tracks) -> bytes:
        rows = np.flatnonzero(batch.kind == EventKind.MARKER)
        if not len(rows):
            return b""
        track = np.fromiter(map(tracks.markers, batch.rank[rows].tolist()), np.int64, len(rows))
        return packets.encode_instants(
            packets.Instants(
                time_ns=begin_ns[rows],
                track=track,
                name=self._interning.names(_titles.ANNOTATION, batch.name[rows]),
                size_bytes=batch.size_bytes[rows],
                source=self._interning.sources(batch.stack[rows]),
                traceparent=self._interning.texts(batch.inputs[rows]),
            )
        )

    def _encode_facts(self, name: str, time_ns: int, tracks: Tracks, facts: Facts) -> bytes:
        """An instant that carries the facts."""
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        trace = Trace()
        packet = trace.packet.add(timestamp=time_ns, trusted_packet_sequence_id=packets.SEQUENCE_ID)
        packet.track_event.type = _INSTANT
        packet.track_event.track_uuid = tracks.markers(-1)
        packet.track_event.name = name
        for fact, value in facts.items():
            if isinstance(value, int):
                packet.track_event.debug_annotations.add(name=fact, int_value=value)
            elif value is not None:
                packet.track_event.debug_annotations.add(name=fact, string_value=protobuf_text(value))
        encoded: bytes = trace.SerializeToString()
        return encoded

    def _descriptions(self, tracks: Tracks) -> bytes:
        """The tracks and strings that were used since the last call for the first time."""
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

        trace = Trace()
        for descriptor in tracks.pending:
            packet = trace.packet.add(
                trusted_packet_sequence_id=packets.SEQUENCE_ID, track_descriptor=descriptor
            )
            if descriptor.uuid == tracks.main_thread:
                packet.trace_packet_defaults.track_event_defaults.track_uuid = descriptor.uuid
        tracks.pending.clear()
        packet = trace.packet.add(
            trusted_packet_sequence_id=packets.SEQUENCE_ID, sequence_flags=packets.NEEDS_INTERNED
        )
        if not self._interning.write_new(packet.interned_data):
            del trace.packet[-1]
        encoded: bytes = trace.SerializeToString()
        return encoded

    def _put(self, encoded: bytes) -> None:
        if self._compress and encoded:
            encoded = packets.compressed(encoded)
        if encoded:
            self._destination.write(encoded)


def _is_written_in_place(destination: Destination) -> bool:
    """Whether what was written survives a crash: then nothing may wait."""
    return isinstance(destination, FileDestination) and not destination.atomic


def _has_several_ranks(info: RecordingInfo, batch: EventBatch) -> bool:
    """Whether the recording is of several ranks, as its first batch shows; one of a single rank names it."""
    ranks = np.unique(batch.rank[batch.rank >= 0])
    return len(ranks) > 1 or (len(ranks) == 1 and info.rank is None and (info.world_size or 1) > 1)


def _first_packets() -> bytes:
    """The clock, and the start of the packet sequence."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    packet = trace.packet.add(
        trusted_packet_sequence_id=packets.SEQUENCE_ID, sequence_flags=packets.FIRST_ON_SEQUENCE
    )
    # Without `clocks`: a snapshot of real ones adds a group of tracks, and a lone process then stays closed.
    packet.clock_snapshot.primary_trace_clock = _MONOTONIC_COARSE
    write_vocabulary(packet.interned_data)
    encoded: bytes = trace.SerializeToString()
    return encoded
