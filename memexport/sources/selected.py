"""A part of another source, as a source: what `Recording.select` reads from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from memexport.analysis.range_cut import RangeCut
from memexport.analysis.selection import Selection, SelectionPass
from memexport.analysis.when import When
from memexport.errors import UsageError
from memexport.model import EventBatch, RecordingEnd, RecordingInfo
from memexport.sources import Source


class SelectedSource:
    """Gives the events of a selection; its recording starts where the range begins.

    Constructing it reads up to a range that begins at an event's index, to know its time. Closing it closes
    the source.

    Raises:
        UsageError: the selection names a time, but the recording has no clock.
        InputError: the source cannot be read.
    """

    def __init__(self, source: Source, selection: Selection) -> None:
        self._source = source
        self._selection = selection
        self.tables = source.tables
        self._begin, self._until = (
            None if when is None else self._resolved(when) for when in selection.range
        )
        self.info = self._info(source.info)
        self._pass = self._new_pass()

    @staticmethod
    def sniff(head: bytes) -> bool:  # noqa: ARG004 - a Source's interface
        """No file is one."""
        return False

    def batches(self) -> Iterator[EventBatch]:
        """Every event of the selection, in order; nothing that comes after it is read.

        Raises:
            InputError: see the source.
            UsageError: the range ends before it begins, or the recording has no such device.
        """
        selecting = self._pass = self._new_pass()
        for batch in self._source.batches():
            if len(chosen := selecting.take(batch)):
                yield chosen
            if selecting.is_over:
                break
        if len(rest := selecting.finish()):
            yield rest

    def end(self) -> RecordingEnd:
        """What the source says, and what the selection left out."""
        return self._pass.end(self._source.end())

    @property
    def fraction_read(self) -> float | None:
        """How much of the file the running pass has read."""
        return self._source.fraction_read

    def close(self) -> None:
        """Give the file back. Calling it twice does nothing."""
        self._source.close()

    def _new_pass(self) -> SelectionPass:
        cut = RangeCut(self._begin, self._until, self.tables.strings)
        return SelectionPass(self._selection, cut, self._source.info.devices)

    def _resolved(self, when: When) -> When:
        """The same place without reference to the recording's start."""
        if when.unit == "event":
            return when
        if self._source.info.clock == "index":
            raise UsageError("this recording has no clock: its times count events", hint="give event indices")
        if when.unit == "unix":
            return when
        start = self._source.info.start_time_unix_ns
        return When("unix", when.value + (self._first_time() if start is None else start))

    def _first_time(self) -> int:
        batch = next((batch for batch in self._source.batches() if len(batch)), None)
        return 0 if batch is None else int(batch.time_unix_ns[0])

    def _info(self, info: RecordingInfo) -> RecordingInfo:
        start, begin = info.start_time_unix_ns, self._begin_time()
        if begin is None or (start is not None and begin <= start):
            return info
        return dataclasses.replace(info, start_time_unix_ns=begin)

    def _begin_time(self) -> int | None:
        """When the range begins; None if that is not known, or nothing lies before it."""
        if self._begin is None or self._source.info.clock == "index":
            return None
        before = RangeCut(self._begin, self._begin, self.tables.strings)
        if self._begin.unit == "event":
            for batch in self._source.batches():
                before.take(batch)
                if before.is_over:
                    break
        return before.begin_ns
