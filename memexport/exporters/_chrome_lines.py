"""Events of a Chrome trace as lines of JSON, made in bulk from columns.

Every line begins with the comma that separates it from the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.exporters import _titles
from memexport.exporters._counters import Changes
from memexport.exporters._nesting import Nestings
from memexport.exporters._processes import Processes, thread_tracks
from memexport.exporters._text import Fragments, lines, microseconds, numbers, quoted
from memexport.model import UNKNOWN_SIZE, EventBatch, EventKind, StringTable

Ints = npt.NDArray[np.int64]

_SLICE: Final = ',\n{"ph":"X",%s,%s,"ts":%d.%03d,"dur":%d.%03d%s%s}}'
_COUNTER: Final = ',\n{"ph":"C",%s,"ts":%d.%03d,"args":{"bytes":%d}}'
_INSTANT: Final = ',\n{"ph":"i","s":"p","name":%s,%s,"ts":%d.%03d}'
_NAME: Final = ',\n{"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{"name":%s}}'


class ChromeTracks:
    """Threads of a Chrome trace by number, and the lines that name those seen for the first time."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._numbers: dict[tuple[int, ...], int] = {}
        self._threads: list[tuple[int, int, str]] = []
        self.new_lines: list[str] = []
        self.places = Fragments(self._place)

    def process(self, rank: int) -> int:
        """The pid of the rank."""
        pid = self._processes.pid(rank)
        if (pid,) not in self._numbers:
            self._numbers[pid,] = -1
            self.new_lines.append(_NAME % ("process_name", pid, 0, quoted(self._processes.name(rank))))
        return pid

    def thread(self, rank: int, thread: int) -> int:
        """The track of a thread, from its string id."""
        pid, place = self.process(rank), self._processes.thread_place(rank, thread)
        return self._track((pid, place), pid, self._processes.thread_name(thread))

    def beside(self, track: int, lane: int) -> int:
        """A track for slices that do not nest with those of the thread."""
        pid, tid, name = self._threads[track]
        return self._track((pid, tid, lane), pid, f"{name}: overlapping spans")

    def _place(self, track: int) -> str:
        pid, tid, _ = self._threads[track]
        return f'"pid":{pid},"tid":{tid}'

    def _track(self, key: tuple[int, ...], pid: int, name: str) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._threads)
            tid = pid + sum(1 for known in self._threads if known[0] == pid)  # the first is the main thread
            self._threads.append((pid, tid, name))
            self.new_lines.append(_NAME % ("thread_name", pid, tid, quoted(name)))
        return self._numbers[key]


class SliceLines:
    """Complete events ("X") of operators and spans."""

    def __init__(self, strings: StringTable, tracks: ChromeTracks) -> None:
        self._strings = strings
        self._tracks = tracks
        self._nestings = Nestings(tracks.beside)
        self._heads = Fragments(self._head)
        self._arguments = Fragments(self._argument)

    def of(self, batch: EventBatch, begin_ns: Ints, end_ns: Ints) -> Iterable[str]:
        """The slices, the last to end first: of two that begin at once, viewers take the first as outer."""
        events, drawn = _titles.drawn_as_slices(batch)
        if not len(events):
            return ()
        begin_ns, track = self._nested(events, begin_ns[drawn], end_ns[drawn])
        titles = _titles.titles(events.select(np.s_[::-1]), self._strings)
        return lines(
            _SLICE,
            self._heads.of(titles.kind, titles.name),
            self._tracks.places.of(track[::-1]),
            *microseconds(begin_ns[::-1]),
            *microseconds(end_ns[drawn[::-1]] - begin_ns[::-1]),
            self._arguments.of(
                titles.kind == _titles.OPERATOR, titles.text, titles.size_bytes != UNKNOWN_SIZE
            ),
            numbers(titles.size_bytes, UNKNOWN_SIZE, ""),
        )

    def _nested(self, events: EventBatch, begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
        return self._nestings.fit(thread_tracks(events, self._tracks.thread), begin_ns, end_ns)

    def _head(self, key: tuple[int, int]) -> str:
        kind, name = key
        label = quoted(_titles.label(kind, name, self._strings))
        return f'"cat":"{_titles.SLICE_KINDS[kind]}","name":{label}'

    def _argument(self, key: tuple[bool, int, bool]) -> str:
        """What stands before the size, up to its key; the size's own place is at the end."""
        is_operator, text, has_size = key
        arguments = []
        if text:
            arguments.append(f'"{"module" if is_operator else "class"}":{quoted(self._strings[text])}')
        if has_size:
            arguments.append('"bytes_delta":')
        return ',"args":{' + ",".join(arguments)


class CounterLines:
    """Counter events ("C"): viewers call each `<name> bytes`."""

    def __init__(self, processes: Processes, tracks: ChromeTracks) -> None:
        self._processes = processes
        self._tracks = tracks

    def of(self, changes: Changes) -> Iterable[str]:
        """A line for each change of a counter."""
        rank, device, counter = changes.counter
        name = quoted(self._processes.counter_name(device, counter))
        head = f'"name":{name},"pid":{self._tracks.process(rank)}'
        times = microseconds(changes.time_ns)
        return lines(_COUNTER, repeat(head, len(changes.values)), *times, changes.values.tolist())


class InstantLines:
    """Instant events ("i") of markers."""

    def __init__(self, strings: StringTable, tracks: ChromeTracks) -> None:
        self._names = Fragments(lambda id_: quoted(strings.get(id_) or "(unknown)"))
        self._tracks = tracks

    def of(self, batch: EventBatch, begin_ns: Ints) -> Iterable[str]:
        """A line for each marker."""
        rows = np.flatnonzero(batch.kind == EventKind.MARKER)
        if not len(rows):
            return ()
        markers = batch.select(rows)
        track = thread_tracks(markers, self._tracks.thread)
        places = self._tracks.places.of(track)
        return lines(_INSTANT, self._names.of(markers.name), places, *microseconds(begin_ns[rows]))
