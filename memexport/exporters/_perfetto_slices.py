"""From events to slices: what operators and spans are called and on which track they lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memexport.exporters import _titles
from memexport.exporters._nesting import Nestings
from memexport.exporters._perfetto_interning import Interning
from memexport.exporters._perfetto_moments import Moments
from memexport.exporters._perfetto_slice_packets import SlicePackets, Slices
from memexport.exporters._perfetto_tracks import Tracks
from memexport.exporters._processes import thread_tracks
from memexport.model import EventBatch, StringTable

Ints = npt.NDArray[np.int64]


class SliceColumns:
    """Draws operators and spans on the track of their thread."""

    def __init__(self, strings: StringTable, interning: Interning, tracks: Tracks) -> None:
        self._strings = strings
        self._interning = interning
        self._tracks = tracks
        self._nestings = Nestings(tracks.beside)

    def encode(self, batch: EventBatch, begin_ns: Ints, end_ns: Ints, moments: Moments) -> bytes:
        """The packets of all slices of the batch, with what counters say at their ends."""
        events, drawn = _titles.drawn_as_slices(batch)
        if not len(events):
            return b""
        slices = self._nested(self._slices(events, begin_ns[drawn], end_ns[drawn]))
        carried = moments.take(slices.end_ns, able=slices.begin_ns < slices.end_ns)
        return SlicePackets(moments, self._tracks.main_thread).encode(replace(slices, carried=carried))

    def _nested(self, slices: Slices) -> Slices:
        """The slices where they can be drawn: those that do not nest, on tracks beside their thread's."""
        begin, track = self._nestings.fit(slices.track, slices.begin_ns, slices.end_ns)
        return replace(slices, begin_ns=begin, track=track)

    def _slices(self, events: EventBatch, begin_ns: Ints, end_ns: Ints) -> Slices:
        titles = _titles.titles(events, self._strings)
        names = np.empty(len(events), np.int64)
        for kind in range(len(_titles.SLICE_KINDS)):
            rows = titles.kind == kind
            if rows.any():
                names[rows] = self._interning.names(kind, titles.name[rows])
        is_operator = titles.kind == _titles.OPERATOR
        texts = self._interning.texts(titles.text)
        return Slices(
            begin_ns=begin_ns,
            end_ns=end_ns,
            track=thread_tracks(events, self._tracks.thread),
            name=names,
            category=titles.kind + 1,
            module=np.where(is_operator, texts, 0),
            class_name=np.where(is_operator, 0, texts),
            overload=np.where(is_operator, self._interning.overloads(events.name), 0),
            inputs=self._interning.texts(events.inputs),
            source=self._interning.sources(events.stack),
            bytes_delta=titles.size_bytes,
            allocated=np.where(is_operator, events.allocated_bytes, -1),
            input_bytes=events.input_bytes,
            output_bytes=events.output_bytes,
            carried=np.full(len(events), -1),
        )
