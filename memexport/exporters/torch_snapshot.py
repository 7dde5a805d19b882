"""Writes a torch memory snapshot (`.snapshot.pickle`), which https://pytorch.org/memory_viz opens."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.places import Place, place_names, split_by_place
from memexport.errors import OutputError
from memexport.exporters import _pickle_opcodes as ops
from memexport.exporters._pickle_opcodes import Value
from memexport.exporters._torch_snapshot_device import DeviceState
from memexport.exporters._torch_snapshot_layout import Layout
from memexport.exporters._torch_snapshot_pickle import Encoder
from memexport.exporters._torch_snapshot_spans import Annotations
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, EventKind, RecordingEnd, RecordingInfo, Tables

_SETTING: Final = "allocator_settings."
_SNAPSHOT: Final = "torch.cuda.snapshot"
_TRACKER: Final = "memexport.archive"
_MAX_INDICES: Final = 1_024
"""A snapshot has a list for every index up to the highest: one beyond this is a device like those without."""


class TorchSnapshotExporter:
    """The pickle of `torch.cuda.memory._dump_snapshot`: plain dicts and lists, nothing that runs.

    ALLOCATIONs and RELEASEs with an address are the trace of their device; what happened before the MARKER
    "start" only decides what is there. Blocks that are live at the end lie in `segments`: those of the
    recording, where it tells of any, else as much as covers all that was ever allocated. What memexport
    itself recorded has no addresses, and is laid out as an allocator might have done it. What a counter has
    beyond that is a block, or free memory, behind all others. SPANs are annotations; the operator and the
    module of an allocation are its innermost frame. Devices of any type have an index as if they were
    CUDA's; `allocator_settings` says which are not.

    A pickle says at its end what it says at its beginning, so the trace is set aside in a temporary file and
    everything is written by `end`. Memory grows with what is live at once.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._states: dict[Place, DeviceState] = {}
        self._begin_at: dict[Place, int] | None = None

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file."""
        self._info = info
        self._tables = tables
        self._of_snapshot = (info.origin or info.format) == _SNAPSHOT
        # The tracker numbers storages; whatever else was read has the addresses of an allocator.
        self._has_addresses = (info.origin or info.format) != _TRACKER
        self._annotations = Annotations(tables.strings)
        self._destination.open()

    def write(self, batch: EventBatch) -> None:
        """Set the events aside."""
        try:
            start = self._start_in(batch) if self._begin_at is None else None
            if start is not None:
                self._add(batch.select(slice(0, start)))
                self._begin_at = {place: state.spool.count for place, state in self._states.items()}
                batch = batch.select(slice(start, None))
            self._add(batch)
        except OSError as error:
            raise self._spool_error(error) from error

    def end(self, end: RecordingEnd) -> None:  # noqa: ARG002 - a snapshot has no place for it
        """Write the snapshot, and put the file in its place."""
        try:
            for piece in self._pickle():
                self._destination.write(piece)
        except OSError as error:
            raise self._spool_error(error) from error
        self._close()
        self._destination.commit()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._close()
        self._destination.discard()

    def _start_in(self, batch: EventBatch) -> int | None:
        """Where the first MARKER "start" of the recording stands."""
        name = self._tables.strings.find("start")
        found = np.flatnonzero((batch.kind == EventKind.MARKER) & (batch.name == (name or 2**32 - 1)))
        return int(found[0]) if len(found) else None

    def _add(self, batch: EventBatch) -> None:
        for place, positions in split_by_place(batch):
            state = self._states.get(place)
            if state is None:
                layout = None if self._has_addresses else Layout()
                state = DeviceState(self._tables, of_snapshot=self._of_snapshot, layout=layout)
                self._states[place] = state
            state.add(batch.select(positions))
        if self._info.clock == "unix":
            self._annotations.add(batch, self._annotated_devices(batch))

    def _annotated_devices(self, batch: EventBatch) -> npt.NDArray[np.int64]:
        indices = np.array([device.index or 0 for device in self._info.devices] or [0], np.int64)
        return np.where(batch.device >= 0, indices[np.minimum(batch.device, len(indices) - 1)], 0)

    def _pickle(self) -> Iterator[bytes]:
        encoder = Encoder(self._tables, self._info.clock, of_snapshot=self._of_snapshot)
        indices = self._indices()
        yield ops.HEAD + ops.EMPTY_DICT + ops.MARK
        yield encoder.value("device_traces")
        yield from self._traces(encoder, {index: place for place, index in indices.items()})
        yield encoder.value("segments") + ops.EMPTY_LIST
        for place, index in indices.items():
            for segment in self._states[place].segments():
                yield ops.MARK + encoder.segment(segment, index) + ops.APPENDS
        yield encoder.value("allocator_settings") + encoder.value(self._settings(indices))
        yield encoder.value("external_annotations") + ops.EMPTY_LIST
        for annotation in self._annotations.entries():
            yield ops.MARK + encoder.value(annotation) + ops.APPENDS
        yield ops.SETITEMS + ops.STOP

    def _traces(self, encoder: Encoder, places: dict[int, Place]) -> Iterator[bytes]:
        yield ops.EMPTY_LIST
        for index in range(max(places, default=-1) + 1):
            yield ops.MARK
            if index in places:
                first = (self._begin_at or {}).get(places[index], 0)
                yield from encoder.trace(self._states[places[index]].spool.read(first))
            else:
                yield ops.EMPTY_LIST
            yield ops.APPENDS

    def _indices(self) -> dict[Place, int]:
        """Torch's index for each place; what has none, or one that is taken, gets the next that is free."""
        devices = self._info.devices
        wanted = {place: devices[place.device].index for place in sorted(self._states)}
        indices: dict[Place, int] = {}
        for place, index in wanted.items():
            if index is not None and 0 <= index < _MAX_INDICES and index not in indices.values():
                indices[place] = index
        free = (number for number in itertools.count() if number not in set(indices.values()))
        for place in wanted:
            if place not in indices:
                indices[place] = next(free)
        return indices

    def _settings(self, indices: dict[Place, int]) -> dict[str, Value]:
        """The allocator's settings, and what devices these are where that is not plain."""
        settings = {
            name.removeprefix(_SETTING): _plain(text)
            for name, text in self._info.options.items()
            if name.startswith(_SETTING)
        }
        for place, name in place_names(list(indices), self._info).items():
            if name != f"cuda:{indices[place]}":
                settings[f"memexport: device {indices[place]}"] = name
        return settings

    def _close(self) -> None:
        for state in self._states.values():
            with contextlib.suppress(OSError):
                state.spool.close()

    def _spool_error(self, error: OSError) -> OutputError:
        what = f"its trace cannot be set aside: {error.strerror or error}"
        return OutputError(self._destination.path, None, what)


def _plain(text: str) -> Value:
    """The value that a source wrote as JSON, or the text itself."""
    try:
        value: Value = json.loads(text)
    except ValueError:
        return text
    return value
