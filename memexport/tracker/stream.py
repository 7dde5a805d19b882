"""The background side of a tracker: rows become batches, batches go to exporters, training never waits.

Two daemon threads. The drain thread takes rows from the log, so that the log stays short whatever the
exporters do; the export thread writes. Between them is a bounded queue: when a disk hangs, whole batches are
dropped and counted, memory stays bounded and training goes on.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from memexport.exporters import Exporter, LiveExporter
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.tracker.rows import BELONG_TO_THE_ROW_BEFORE, DEVICE_UNIT, ROW

log = logging.getLogger("memexport")

_POLL_S = 0.05
_CHUNK_ROWS = 16384
_QUEUED_BATCHES = 64
_REST = 10
"""How many times as long rows wait while only the ends of steps are logged."""


class ExportThread:
    """Writes batches to exporters, one after another. An exporter that fails is dropped, with one warning.

    Attributes:
        dropped_events: events that no exporter got because the queue was full.
        failures: sentences about exporters that gave up.
    """

    def __init__(self, exporters: Sequence[Exporter]) -> None:
        self._exporters = list(exporters)
        self._queue: queue.Queue[EventBatch | None] = queue.Queue(_QUEUED_BATCHES)
        self._thread = threading.Thread(target=self._run, name="memexport export", daemon=True)
        self.dropped_events = 0
        self.failures: list[str] = []

    def begin(self, info: RecordingInfo, tables: Tables, progress: Callable[[], RecordingEnd]) -> None:
        """Open every output; raises what opening raises, after giving the others back.

        `progress` says what the recording's end would say now.
        """
        try:
            for exporter in self._exporters:
                exporter.begin(info, tables)
                if isinstance(exporter, LiveExporter):
                    exporter.watch(progress)
        except BaseException:
            for exporter in self._exporters:
                exporter.abort()
            raise
        self._thread.start()

    def put(self, batch: EventBatch, *, wait: bool) -> None:
        """Hand a batch over. Without `wait`, a full queue drops it."""
        if not self._exporters:
            return
        try:
            self._queue.put(batch, block=wait)
        except queue.Full:
            self.dropped_events += len(batch)

    def end(self, end: Callable[[], RecordingEnd]) -> None:
        """Write what is queued, then complete every output. Exporters that failed have already given up."""
        self._queue.put(None)
        self._thread.join()
        for exporter in list(self._exporters):
            self._guarded(exporter, functools.partial(exporter.end, end()))

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            for exporter in list(self._exporters):
                self._guarded(exporter, functools.partial(exporter.write, batch))

    def _guarded(self, exporter: Exporter, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._exporters.remove(exporter)
            self.failures.append(f"{type(exporter).__name__} gave up: {error}")
            log.warning("memexport: %s gave up, the program goes on: %s", type(exporter).__name__, error)
            exporter.abort()


class DrainThread:
    """Takes rows from the front of a log every `flush_interval` seconds, sooner when many have come.

    Args:
        log_bytes: the log; other threads append to it at any time.
        take: turns a chunk of whole rows into something useful. Called from one thread at a time.
        flush_interval: the most seconds that a row stays in the log.
    """

    def __init__(self, log_bytes: bytearray, take: Callable[[bytes], None], flush_interval: float) -> None:
        self._log = log_bytes
        self._take = take
        self._flush_interval = flush_interval
        self._stop = threading.Event()
        self._taking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="memexport drain", daemon=True)
        self._interval = flush_interval
        self._rests = False

    def rest(self) -> None:
        """Take what there is, and after that less often: hardly anything is logged until `hurry`."""
        self._rests = True

    def hurry(self) -> None:
        """Take rows as often as at first."""
        self._rests = False
        self._interval = self._flush_interval

    def start(self) -> None:
        """Begin to take rows."""
        self._thread.start()

    def flush(self) -> None:
        """Take everything that has been logged until now."""
        with self._taking:
            while chunk := self._cut():
                self._take(chunk)

    def stop(self) -> None:
        """Take the rest and end the thread."""
        self._stop.set()
        self._thread.join()
        self.flush()

    def _run(self) -> None:
        poll = min(_POLL_S, self._flush_interval)
        flushed = time.monotonic()
        while not self._stop.wait(poll):
            now = time.monotonic()
            if len(self._log) >= _CHUNK_ROWS * ROW.size or now - flushed >= self._interval:
                flushed = now
                self._interval = self._flush_interval * (_REST if self._rests else 1)
                self.flush()

    def _cut(self) -> bytes:
        end = _CHUNK_ROWS * ROW.size
        if len(self._log) > end:
            code, *_ = ROW.unpack_from(self._log, end)
            if code % DEVICE_UNIT in BELONG_TO_THE_ROW_BEFORE:
                end += ROW.size
        # Both statements are atomic under the interpreter's lock; what is appended between them stays.
        chunk = bytes(self._log[:end])
        del self._log[: len(chunk)]
        return chunk
