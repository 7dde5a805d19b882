"""Writes pprof profiles (`.pb.gz`): what lived at the peak, and all that was allocated, by the code."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from memexport.analysis.frames import MAX_LINE, parse_frame
from memexport.analysis.live import REMEMBERED
from memexport.analysis.places import Place, place_names
from memexport.analysis.text import operator_label
from memexport.exporters._allocated import Allocated, Key
from memexport.exporters._flamegraph import UNATTRIBUTED, CodeFrames, category_name, module_frames, sums
from memexport.exporters._frames import Frame
from memexport.exporters._peaks import Peak
from memexport.exporters._pprof_profile import Profile
from memexport.exporters._residence import Residences
from memexport.exporters._timeline import Timeline
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, Phase, RecordingEnd, RecordingInfo, Tables

# As in Go's heap profiles, in their order.
_SAMPLE_TYPES: Final = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)
_DEFAULT_TYPE: Final = "inuse_space"
_PLACE: Final = ("module", "name", "stack", "category", "phase")
_GZIP_LEVEL: Final = 6
# What torch's own snapshots have at the end of every stack: the allocator, and the code that takes the stack.
_MACHINERY: Final = "|".join(
    (
        "torch::unwind::.*",
        "torch::CapturedTraceback::.*",
        "torch::.*::gather_with_cpp",
        "c10::cuda::CUDACachingAllocator::.*",
    )
)


class PprofExporter:
    """A heap profile for `go tool pprof` and whatever else reads pprof.

    Each device of each rank at the moment when its `allocated` was first at its highest: the samples with its
    labels "device" and "rank" add up to that peak in `inuse_space`. What no allocation explains is
    "(unattributed)". `inuse_objects` counts tensor storages. `alloc_space` and `alloc_objects` are all that
    was allocated in the recording, released meanwhile or not, with what lived before it.

    Stacks: the Python code that called the operator where it was recorded (`record_stacks`), else the module
    and those it is in; then the operator. Labels, each where it is known: category, device, module, phase,
    rank.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._peaks: dict[Place, Peak] = {}
        self._allocated: dict[Place, Allocated] = {}

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file. It is written at the end."""
        self._info = info
        self._tables = tables
        self._code = CodeFrames(tables, _source_frame)
        self._timeline = Timeline(info)
        self._residences = Residences(tables.strings, (*REMEMBERED, "phase"))
        self._destination.open()

    def write(self, batch: EventBatch) -> None:
        """Look for higher peaks, and add up what is allocated."""
        _, end_ns = self._timeline.place(batch)
        for residence in self._residences.add(batch, end_ns):
            self._peaks.setdefault(residence.place, Peak()).add(residence)
            allocated = self._allocated.setdefault(residence.place, Allocated(_PLACE))
            allocated.add(batch, residence.lifetimes)

    def end(self, end: RecordingEnd) -> None:
        """Write the profile, and put the file in its place."""
        profile = Profile(_SAMPLE_TYPES, _DEFAULT_TYPE, self._program())
        names = place_names(list(self._peaks), self._info)
        found = {place: peak for place, peak in self._peaks.items() if peak.bytes >= 0}
        for place in sorted(found, key=lambda place: (-found[place].bytes, place)):
            for frames, values, labels in self._samples(place, found[place]):
                profile.add(frames, values, labels)
        comments = [f"{names[place]}: peak of {peak.bytes} bytes allocated" for place, peak in found.items()]
        encoded = profile.encode(self._time_unix_ns(found), [*comments, *end.warnings], _MACHINERY)
        # Without a time in it, the same recording gives the same bytes.
        self._destination.write(gzip.compress(encoded, _GZIP_LEVEL, mtime=0))
        self._destination.commit()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._destination.discard()

    def _samples(
        self, place: Place, peak: Peak
    ) -> Iterator[tuple[list[Frame], tuple[int, ...], dict[str, str | None]]]:
        """The frames, values (`_SAMPLE_TYPES`) and labels of each part of the program that allocated."""
        where = self._where(place)
        live = peak.live()
        in_use = {tuple(key): (size, n) for key, size, n in (sums(live, _PLACE) if len(live) else ())}
        allocated = self._allocated[place].result()
        for key in sorted(allocated.keys() | in_use.keys()):
            frames, labels = self._described(key)
            values = _values(allocated.get(key, (0, 0)), in_use.get(key, (0, 0)))
            yield frames, values, {**labels, **where}
        rest = peak.bytes - sum(size for size, _ in in_use.values())
        if rest > 0:
            values = _values((0, 0), (rest, 0))
            yield [Frame(f"({UNATTRIBUTED})")], values, {"category": UNATTRIBUTED, **where}

    def _described(self, key: Key) -> tuple[list[Frame], dict[str, str | None]]:
        """The frames of a part of the program (`_PLACE`), outermost first, and what is known of it."""
        module, name, stack, category, phase = key
        path = self._tables.strings.get(module)
        frames = list(self._code.frames(stack)) or list(_modules(path))
        if name:
            frames.append(Frame(operator_label(self._tables.strings[name])))
        label = category_name(category)
        known = Phase(phase).name.lower() if phase else None
        return frames or [Frame(f"({label})")], {"category": label, "module": path, "phase": known}

    def _where(self, place: Place) -> dict[str, str | None]:
        known = 0 <= place.device < len(self._info.devices)
        device = str(self._info.devices[place.device]) if known else f"device {place.device}"
        rank = place.rank if place.rank >= 0 else self._info.rank
        return {"device": device, "rank": None if rank is None else str(rank)}

    def _program(self) -> str:
        command = self._info.command_line
        return PurePath(command[0]).name if command else self._info.producer or "memexport"

    def _time_unix_ns(self, peaks: dict[Place, Peak]) -> int | None:
        """When the highest peak was; None where there is no clock."""
        origin = self._timeline.origin_unix_ns
        if not peaks or origin is None or self._info.clock != "unix":
            return None
        return origin + max(peaks.values(), key=lambda peak: peak.bytes).time_ns


def _values(allocated: tuple[int, int], in_use: tuple[int, int]) -> tuple[int, ...]:
    """Bytes and number of each, in the order of `_SAMPLE_TYPES`."""
    return allocated[1], allocated[0], in_use[1], in_use[0]


def _modules(path: str | None) -> Iterator[Frame]:
    """The module and those it is in, each under its whole path: viewers add up what has one name."""
    for part in itertools.accumulate(module_frames(path), "{}.{}".format):
        yield Frame(part)


def _source_frame(text: str) -> Frame:
    """The function, its file and its line: pprof shows them side by side."""
    frame = parse_frame(text)
    return Frame(frame.function, frame.file, frame.line if 0 < frame.line < MAX_LINE else 0)
