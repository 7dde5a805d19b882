"""Writes the peak of each step as scalars for TensorBoard: an event file in a log folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from memexport.analysis.breakdown import by_category
from memexport.analysis.places import Place, place_names
from memexport.errors import OutputError, UsageError
from memexport.exporters._peaks import Peak, StepPeaks
from memexport.exporters._residence import Residence, Residences
from memexport.exporters.destination import Destination, FileDestination
from memexport.exporters.remote_destination import RemoteDestination
from memexport.model import Column, EventBatch, RecordingEnd, RecordingInfo, Tables

_VERSION: Final = "brain.Event:2"
"""What an event file begins with; https://github.com/tensorflow/tensorboard, event.proto."""


class TensorBoardExporter:
    """Scalars of each step, at the time at which it was so; TensorBoard shows a folder of runs as one each.

    `memexport/peak_bytes/DEVICE/total` is the most that was allocated in the step, and `.../CATEGORY` what it
    was for then: they add up. `memexport/reserved_bytes/DEVICE` is the most that was reserved in it, where
    that is known; `memexport/retries` and `memexport/ooms` count from the start. Where no step runs, a peak
    that is higher than all before belongs to the step before it. TensorBoard keeps 24 bits of a number.

    While a recording is made, a step is written when the next one has begun.

    Args:
        destination: the folder of the run, or the destination that stands for it; made if it is not there.
            Each recording gets an event file of its own in it.

    Raises:
        UsageError: tensorboard is not installed, or the destination is a stream.
    """

    def __init__(self, destination: Destination | str | os.PathLike[str]) -> None:
        self._folder = destination
        self._progress: Callable[[], RecordingEnd] | None = None
        self._file: Destination | None = None
        self._made: Path | None = None
        self._encode = _encoder()
        _file_in(destination, PurePath("x"))

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Make the folder, and the file in it.

        Raises:
            OutputError: one of them cannot be.
        """
        self._info = info
        self._residences = Residences(tables.strings)
        self._places: dict[Place, _PlaceScalars] = {}
        self._progress = None
        self._last = (0, (info.start_time_unix_ns or 0) / 1e9)
        self._file = _file_in(self._folder, PurePath(_file_name(info)))
        self._made = _made_folder(self._file)
        self._file.open()
        self._file.write(self._encode({}, 0, self._last[1]))

    def watch(self, progress: Callable[[], RecordingEnd]) -> None:
        """Count retries and failed requests from step to step too."""
        self._progress = progress

    def write(self, batch: EventBatch) -> None:
        """Write the steps that are over."""
        end_ns = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
        written = 0
        for residence in self._residences.add(batch, end_ns):
            scalars = self._places.setdefault(residence.place, _PlaceScalars())
            for peak in scalars.add(residence, batch.reserved_bytes[residence.positions]):
                self._write_peak(residence.place, peak)
                written += 1
        if written and self._progress is not None:
            self._write_counts(self._progress())

    def end(self, end: RecordingEnd) -> None:
        """Write the last step, and put the file in its place."""
        for place, scalars in sorted(self._places.items()):
            for peak in scalars.end():
                self._write_peak(place, peak)
        self._write_counts(end)
        file, self._file = self._opened(), None
        file.commit()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        file, self._file = self._file, None
        if file is not None:
            file.discard()
            if self._made is not None:
                with contextlib.suppress(OSError):  # something else may be in it by now
                    self._made.rmdir()

    def _write_peak(self, place: Place, peak: Peak) -> None:
        name = place_names(list(self._places), self._info)[place]
        scalars = self._places[place]
        step = peak.step if peak.step >= 0 else self._last[0]
        self._last = (step, peak.time_ns / 1e9)
        tags = {f"memexport/peak_bytes/{name}/{category}": n for category, n in scalars.categories(peak)}
        self._write(tags, *self._last)
        reserved = scalars.reserved.pop(peak.step, None)
        if reserved is not None:
            self._write({f"memexport/reserved_bytes/{name}": reserved[0]}, step, -reserved[1] / 1e9)

    def _write_counts(self, end: RecordingEnd) -> None:
        counts = {"memexport/retries": end.alloc_retries, "memexport/ooms": end.ooms}
        self._write({tag: n for tag, n in counts.items() if n is not None}, *self._last)

    def _write(self, scalars: Mapping[str, int], step: int, time_s: float) -> None:
        if scalars:
            self._opened().write(self._encode(scalars, step, time_s))

    def _opened(self) -> Destination:
        if self._file is None:
            raise OutputError(str(self._folder), None, "is not open")
        return self._file


class _PlaceScalars:
    """One device of one rank.

    Attributes:
        reserved: the most that was reserved in each step that is not written yet, and when: minus its time.
    """

    def __init__(self) -> None:
        self.reserved: dict[int, tuple[int, int]] = {}
        self._peaks = StepPeaks()
        self._seen: dict[str, int] = {}

    def add(self, residence: Residence, reserved: Column) -> Iterator[Peak]:
        """Take one more batch; the peaks of the steps that are over."""
        known = np.flatnonzero(reserved >= 0)
        for step in np.unique(residence.step[known]).tolist():
            of_step = known[residence.step[known] == step]
            highest = int(of_step[reserved[of_step].argmax()])
            found = (int(reserved[highest]), -int(residence.end_ns[residence.positions[highest]]))
            self.reserved[step] = max(found, self.reserved.get(step, found))
        return self._peaks.add(residence)

    def end(self) -> Iterator[Peak]:
        """The peak of the step that is not over yet."""
        return self._peaks.end()

    def categories(self, peak: Peak) -> Iterator[tuple[str, int]]:
        """Bytes by category at the peak, 0 where there were some before, and their total."""
        found = by_category(peak.live(), peak.bytes)
        self._seen |= dict.fromkeys(found, 0)
        yield "total", peak.bytes
        yield from {**self._seen, **found}.items()


def _encoder() -> Callable[[Mapping[str, int], int, float], bytes]:
    """Encodes scalars of one step and moment as one record; none at all, as the record that begins a file.

    Raises:
        UsageError: tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise UsageError(
            "tensorboard is not installed", hint="pip install 'memexport[tensorboard]'"
        ) from error

    def encode(scalars: Mapping[str, int], step: int, time_s: float) -> bytes:
        event: Any = Event(wall_time=time_s, step=step)
        if not scalars:
            event.file_version = _VERSION
        for tag, value in scalars.items():
            event.summary.value.add(tag=tag, simple_value=value)
        framed = _Framed()
        RecordWriter(framed).write(event.SerializeToString())
        return bytes(framed)

    return encode


class _Framed(bytearray):
    """What a record is written to."""

    def write(self, data: bytes) -> None:
        """Append the bytes."""
        self.extend(data)


def _file_name(info: RecordingInfo) -> str:
    """TensorBoard reads files with "tfevents" in their names, in the order of their names."""
    parts = (f"{(info.start_time_unix_ns or 0) // 10**9:010d}", info.host, info.pid, info.rank, "memexport")
    return "events.out.tfevents." + ".".join(_safe(str(part)) for part in parts if part is not None)


def _safe(text: str) -> str:
    """What a recording says of its host may be anything."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in text[:100])


def _file_in(folder: Destination | str | os.PathLike[str], name: PurePath) -> Destination:
    """A file in the folder that a destination stands for.

    Raises:
        UsageError: it is a stream.
    """
    if isinstance(folder, (str, os.PathLike)):
        return FileDestination(Path(folder) / name, overwrite=True, atomic=False)
    if isinstance(folder, FileDestination):
        return FileDestination(folder.path / name, folder.overwrite, folder.atomic)
    if isinstance(folder, RemoteDestination):
        return RemoteDestination(f"{folder.url.rstrip('/')}/{name}", folder.overwrite, folder.atomic)
    raise UsageError("TensorBoard reads files in a folder, not a stream", hint="-o DIR/")


def _made_folder(file: Destination) -> Path | None:
    """Make the file's folder; None if it was there.

    Raises:
        OutputError: it cannot be made.
    """
    if not isinstance(file, FileDestination) or file.path.parent.is_dir():
        return None
    try:
        file.path.parent.mkdir(parents=True)
    except OSError as error:
        raise OutputError(file.path.parent, None, error.strerror or str(error)) from error
    return file.path.parent
