"""Writes Chrome traces (`.json`, `.json.gz`): the JSON object format of chrome://tracing.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from itertools import chain

from memexport.exporters._chrome_lines import ChromeTracks, CounterLines, InstantLines, SliceLines
from memexport.exporters._counters import CounterChanges
from memexport.exporters._facts import about_end, about_recording
from memexport.exporters._processes import Processes
from memexport.exporters._text import TextFile
from memexport.exporters._timeline import Timeline
from memexport.exporters.destination import Destination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables


class ChromeExporter:
    """One trace for chrome://tracing, ui.perfetto.dev and every tool that reads this format.

    Times are microseconds after the recording's start with three decimals: exact, which epoch times as
    doubles are not. The start itself is in `otherData`, with all else that is known of the recording. The
    file is valid JSON only once it has ended.
    """

    def __init__(self, destination: Destination) -> None:
        self._file = TextFile(destination)
        self._counters = CounterChanges()

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file and name the process."""
        self._info = info
        self._timeline = Timeline(info)
        processes = Processes(info, tables.strings)
        self._tracks = ChromeTracks(processes)
        self._slice_lines = SliceLines(tables.strings, self._tracks)
        self._counter_lines = CounterLines(processes, self._tracks)
        self._instant_lines = InstantLines(tables.strings, self._tracks)
        self._tracks.process(-1)
        self._file.open()
        self._file.write('{"displayTimeUnit":"ns","traceEvents":[' + self._new_names().lstrip(","))

    def write(self, batch: EventBatch) -> None:
        """Write the batch's events, and the names of the threads that they are the first on."""
        begin_ns, end_ns = self._timeline.place(batch)
        changes = self._counters.of(batch, end_ns)
        events = "".join(
            chain(
                self._slice_lines.of(batch, begin_ns, end_ns),
                self._instant_lines.of(batch, begin_ns),
                chain.from_iterable(map(self._counter_lines.of, changes)),
            )
        )
        self._file.write(self._new_names() + events)

    def end(self, end: RecordingEnd) -> None:
        """Write what the recording says of itself, and put the file in its place."""
        facts = {
            **about_recording(self._info, self._timeline.origin_unix_ns or 0),
            **about_end(end, self._counters.clipped_values, self._timeline.clipped_events),
        }
        known = {name: value for name, value in facts.items() if value is not None}
        self._file.close(f'\n],"otherData":{json.dumps(known)}}}\n')

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._file.discard()

    def _new_names(self) -> str:
        names = "".join(self._tracks.new_lines)
        self._tracks.new_lines.clear()
        return names
