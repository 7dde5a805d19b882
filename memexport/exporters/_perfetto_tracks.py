"""The tracks of a Perfetto trace: processes, threads, counters and markers, described when first used."""

from __future__ import annotations

from typing import Any, Final

from memexport.analysis.places import Place
from memexport.exporters._counters import COUNTER_NAMES, CounterKey
from memexport.exporters._flamegraph import category_name
from memexport.exporters._perfetto_interning import protobuf_text
from memexport.exporters._processes import Processes
from memexport.model import RecordingInfo, StringTable

_UNIT_SIZE_BYTES: Final = 3
_EXPLICIT: Final = 3
_AFTER_CATEGORIES: Final = 100
_FIRST_HEAP_PID: Final = 50_000_000


class Tracks:
    """Gives every track its uuid, small numbers from 1, and keeps the descriptors not yet written.

    With one rank, counters hang under its process: the UI opens a lone process on load. With several, each
    rank's `allocated` is at the root, where the UI draws it above the processes, and the other counters are
    its children.

    Attributes:
        main_thread: the uuid of the thread that was described first, which a trace's packets mean where they
            name none; 0 before.
    """

    def __init__(self, info: RecordingInfo, strings: StringTable, several_ranks: bool) -> None:
        self._info = info
        self._processes = Processes(info, strings)
        self._several_ranks = several_ranks
        self._uuids: dict[tuple[Any, ...], int] = {}
        self._thread_names: dict[int, tuple[int, str]] = {}
        self.pending: list[Any] = []
        self.main_thread = 0

    def process(self, rank: int) -> int:
        """The process of the rank; −1 is the recording's own."""
        key = ("process", self._processes.known_rank(rank))
        if key not in self._uuids:
            process = self._describe(key).process
            process.pid = self._processes.pid(rank)
            process.process_name = protobuf_text(self._processes.name(rank))
            if self._processes.is_own(rank):
                process.process_labels.extend([protobuf_text(self._info.host)] if self._info.host else [])
                process.cmdline.extend(map(protobuf_text, self._info.command_line))
        return self._uuids[key]

    def thread(self, rank: int, thread: int) -> int:
        """The thread of the rank, from its string id."""
        place = self._processes.thread_place(rank, thread)
        key = ("thread", self._processes.known_rank(rank), place)
        if key not in self._uuids:
            parent, pid = self.process(rank), self._processes.pid(rank)
            descriptor = self._describe(key, parent)
            descriptor.thread.pid = pid
            descriptor.thread.tid = pid + place  # tid == pid is what makes a thread the main one
            descriptor.thread.thread_name = protobuf_text(self._processes.thread_name(thread))
            self._thread_names[descriptor.uuid] = parent, descriptor.thread.thread_name
            self.main_thread = self.main_thread or descriptor.uuid
        return self._uuids[key]

    def beside(self, thread_track: int, lane: int) -> int:
        """A track for slices that do not nest with those of the thread; the UI draws all lanes as one."""
        key = ("beside", thread_track, lane)
        if key not in self._uuids:
            parent, thread = self._thread_names[thread_track]
            self._describe(key, parent).name = f"{thread}: overlapping spans"
        return self._uuids[key]

    def markers(self, rank: int) -> int:
        """The track of the rank's instants."""
        rank = self._processes.known_rank(rank)
        key = ("markers", rank)
        if key not in self._uuids:
            # A recording of several ranks has no process of its own.
            parent = None if self._several_ranks and rank < 0 else self.process(rank)
            self._describe(key, parent).name = "markers"
        return self._uuids[key]

    def counter(self, counter: CounterKey) -> int:
        """A counter in bytes."""
        counter = counter._replace(rank=self._processes.known_rank(counter.rank))
        if counter not in self._uuids:
            parent, name = self._counter_place(counter)
            descriptor = self._describe(counter, parent)
            descriptor.name = name
            descriptor.counter.unit = _UNIT_SIZE_BYTES
            descriptor.child_ordering = _EXPLICIT
            descriptor.sibling_order_rank = _AFTER_CATEGORIES + COUNTER_NAMES.index(counter.name)
            if not self._several_ranks:
                descriptor.counter.y_axis_share_key = f"device {counter.device}"
            elif parent is None:
                descriptor.counter.y_axis_share_key = counter.name
        return self._uuids[counter]

    def category(self, place: Place, category: int) -> int:
        """The counter of a category of memory, below `allocated`; categories share an axis."""
        rank = self._processes.known_rank(place.rank)
        key = ("category", rank, place.device, category)
        if key not in self._uuids:
            descriptor = self._describe(key, self.counter(CounterKey(rank, place.device, "allocated")))
            descriptor.name = category_name(category)
            descriptor.sibling_order_rank = category
            descriptor.counter.unit = _UNIT_SIZE_BYTES
            descriptor.counter.y_axis_share_key = "categories"
        return self._uuids[key]

    def lifetimes(self, place: Place, name: str, lane: int) -> int:
        """A lane of a chart of tensor lifetimes; the UI draws all lanes of one name as one chart.

        Its name must come after `rank`: the UI puts root-level counters above the processes only if fewer
        than fifty tracks come before them by name, and each lane is one.
        """
        rank = self._processes.known_rank(place.rank)
        key = (name, rank, place.device, lane)
        if key not in self._uuids:
            parent = self.process(rank)
            self._describe(key, parent).name = name
        return self._uuids[key]

    def heap(self, place: Place, dumps_before: int) -> int:
        """The pid for the heap dump of a place.

        Dumps of one process would be added up, so that only the first one of a rank is its own process's.
        """
        pid = self._processes.pid(place.rank)
        if not dumps_before:
            self.process(place.rank)
            return pid
        name = f"{self._processes.name(place.rank)}: {self._processes.device_name(place.device)}"
        process = self._describe(("heap", place)).process
        process.pid = pid = _FIRST_HEAP_PID + len(self._uuids)
        process.process_name = protobuf_text(f"{name} at its peak")
        return int(pid)

    def device_name(self, device: int) -> str:
        """What torch calls the device."""
        return self._processes.device_name(device)

    def _counter_place(self, counter: CounterKey) -> tuple[int | None, str]:
        """The parent track, and the name."""
        rank, device = counter.rank, counter.device
        name = self._processes.counter_name(device, counter.name)
        if not self._several_ranks or rank < 0:
            return self.process(rank), name
        if counter.name != "allocated":
            return self.counter(CounterKey(rank, device, "allocated")), name
        return None, f"{self._processes.sorting_name(rank)} {name}"

    def _describe(self, key: tuple[Any, ...], parent: int | None = None) -> Any:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor

        uuid = self._uuids[key] = len(self._uuids) + 1
        descriptor = TrackDescriptor(uuid=uuid, parent_uuid=parent)
        self.pending.append(descriptor)
        return descriptor
