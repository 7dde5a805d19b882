"""Notices that memory ran out, and tells what is known of it: in a recording, and in a note on the error.

It runs inside of the program, between the error and whoever handles it. So it makes no tensor, keeps nothing
of the error (that would keep its frames, and their tensors, alive), and an error of its own goes no further.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from memexport import pipeline
from memexport.analysis.summary import SummaryFold
from memexport.exporters import Exporter
from memexport.exporters.archive import ArchiveExporter  # noqa: F401 - there is no memory for it later
from memexport.model import EventBatch, Phase, RecordingEnd, RecordingInfo, Tables
from memexport.tracker.capture import Capture
from memexport.tracker.oom import observer, replay
from memexport.tracker.oom.live import NOBODY, LiveNow
from memexport.tracker.oom.report import HEADLINE, OomReport
from memexport.tracker.oom.request import Request, is_oom, message, request_of
from memexport.tracker.oom.ring import Contents, Ring
from memexport.tracker.oom.rows import RequestLog
from memexport.tracker.oom.stack import stack_of
from memexport.tracker.oom.target import Target
from memexport.tracker.rows import LABEL_UNIT

log = logging.getLogger("memexport")

MOST_REPORTS: Final = 5
"""Of one recording: a program that tries again and again shall not fill the disk."""

_SAME_SIZE: Final = 0.01
"""How far a size in a message is from the true one at most: it has three digits."""


@dataclass(frozen=True)
class Process:
    """What the recorder needs of the recording that it is a part of.

    Attributes:
        flush: logged rows are in the ring when it returns.
        end: what the recording's end would say now.
    """

    capture: Capture
    info: RecordingInfo
    tables: Tables
    make_assembler: replay.MakeAssembler
    flush: Callable[[], None]
    end: Callable[[], RecordingEnd]


@dataclass(frozen=True)
class _Where:
    """Who asked: the codes of an operator (None: that is not known) and its context, and when it failed."""

    operator_code: int | None
    context: int
    time_ns: int


class OomRecorder:
    """Keeps the last events, and writes them when memory runs out.

    Attributes:
        ring: the events; the drain thread fills it.
        ooms: how many requests failed.
    """

    def __init__(self, to: Target | Callable[[OomReport], object], ring: Ring, process: Process) -> None:
        self.ring = ring
        self.ooms = 0
        self._to = to
        self._process = process
        self._requests = RequestLog(process.capture)
        self._handling = threading.RLock()
        self._is_handling = False
        self._latest: tuple[str, str] | None = None
        self._pid = os.getpid()
        self._has_failed = False

    def check(self) -> None:
        """Look whether there could be a recording.

        Raises:
            OutputError: it could not be written.
        """
        if isinstance(self._to, Target):
            self._to.check()

    # ---- where errors come by

    def raised(self, error: BaseException, operator_code: int, context: int, time_ns: int) -> None:
        """An operator raised this error. Raises nothing."""
        self._notice(error, _Where(operator_code, context, time_ns), leaves=False)

    def leaves(self, error: BaseException) -> bool:
        """Whether this error, which ends the recording, is memory that ran out. Raises nothing."""
        capture = self._process.capture
        thread = capture.running.thread()
        context = capture.labels.context(None, int(Phase.UNKNOWN), thread.name)
        return self._notice(error, _Where(None, context, time.perf_counter_ns()), leaves=True)

    def _notice(self, error: BaseException, where: _Where, *, leaves: bool) -> bool:
        try:
            if not is_oom(error):
                return False
            with self._handling:
                if not (self._is_handling or os.getpid() != self._pid or _has_note(error)):
                    self._is_handling = True
                    try:
                        self._handle(error, where, leaves=leaves)
                    finally:
                        self._is_handling = False
        except Exception as own:
            self._fail(own)
        return True

    def _handle(self, error: BaseException, where: _Where, *, leaves: bool) -> None:
        if leaves and self._latest is not None and self._latest[0] == message(error):
            # Made anew on its way through C++: what is to be said of it was said.
            error.add_note(self._latest[1])
            return
        self.ooms += 1
        request = _completed(request_of(error))
        stack, operator = stack_of(error), self._operator(where)
        called = [] if operator is None else [operator]
        self._requests.log(request, where.context, where.time_ns, stack + called)
        self._latest = None
        note = f"{HEADLINE}; only the first {MOST_REPORTS} times are reported"
        if self.ooms <= MOST_REPORTS:
            note = self._report(request, where, stack)
        self._latest = (message(error), note)
        error.add_note(note)

    # ---- the report

    def _report(self, request: Request, where: _Where, stack: list[str]) -> str:
        """Write or tell what there is to say; the note. What does not work out is left out of it."""
        self._process.flush()
        contents = self.ring.contents()
        report = OomReport(
            request_bytes=request.bytes,
            device=self._requests.device_of(request),
            device_free_bytes=request.free_bytes,
            operator=self._operator(where),
            module=self._module(where),
            phase=self._phase(where),
            step=contents.steps,
            stack=tuple(stack),
            write=partial(self._write, contents),
        )
        if isinstance(self._to, Target):
            with self._guarded():
                report.save(self._to.next_path())
        with self._guarded():
            report = self._with_live(report, contents)
        if not isinstance(self._to, Target):
            with self._guarded():
                self._to(report)
        return str(report)

    def _with_live(self, report: OomReport, contents: Contents) -> OomReport:
        live = LiveNow(self._process.tables)
        for batch in self._batches(contents):
            live.add(batch)
        names = [str(device) for device in self._process.info.devices]
        asked = names.index(report.device) if report.device in names else None
        held = NOBODY if asked is None else live.held(asked)
        on = report.device
        if not held.categories:  # whatever was asked for there, the tracker followed it elsewhere
            on, held = max(
                ((names[index], live.held(index)) for index in live.devices()),
                key=lambda found: sum(found[1].categories.values()),
                default=(on, held),
            )
        counters = report.counters if asked is None else live.counters(asked)
        return replace(report, counters=counters, held_on=on, held=held)

    def _operator(self, where: _Where) -> str | None:
        labels = self._process.capture.labels
        if where.operator_code is None:
            return None
        return self._process.tables.strings.get(labels.names[where.operator_code // LABEL_UNIT])

    def _module(self, where: _Where) -> str | None:
        return self._process.tables.strings.get(self._process.capture.labels.modules[where.context])

    def _phase(self, where: _Where) -> str | None:
        phase = Phase(self._process.capture.labels.phases[where.context])
        return None if phase is Phase.UNKNOWN else phase.name.lower()

    # ---- the recording

    def fold(self) -> SummaryFold:
        """What is in the ring, summed up."""
        fold = SummaryFold(self._process.info, self._process.tables)
        for batch in self._batches(self.ring.contents()):
            fold.add(batch)
        return fold

    def end(self, end: RecordingEnd, contents: Contents | None = None) -> RecordingEnd:
        """With what the ring has lost."""
        baseline = (contents or self.ring.contents()).baseline
        return replace(end, dropped_events=baseline.dropped_events)

    def _batches(self, contents: Contents) -> Iterator[EventBatch]:
        if contents.chunks:
            labels = self._process.capture.labels
            now = time.perf_counter_ns()
            yield from replay.batches(contents, labels, self._process.make_assembler, now)

    def _write(self, contents: Contents, path: Path) -> None:
        exporter: Exporter = pipeline.exporter_to(path, overwrite=True)
        try:
            exporter.begin(self._process.info, self._process.tables)
            for batch in self._batches(contents):
                exporter.write(batch)
            exporter.end(self.end(self._process.end(), contents))
        except BaseException:
            exporter.abort()
            raise

    # ---- errors of our own

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as own:
            self._fail(own)

    def _fail(self, own: Exception) -> None:
        """Say so once. Not with the traceback: it leads to the program's frames."""
        if not self._has_failed:
            self._has_failed = True
            log.warning("memexport could not report that memory ran out: %r", own)


def _has_note(error: BaseException) -> bool:
    notes = getattr(error, "__notes__", ())
    return any(isinstance(note, str) and note.startswith(HEADLINE) for note in notes)


def _completed(said: Request) -> Request:
    """What the message says, with what the allocator told if it was of the same request."""
    told = observer.take()
    if told is None or (said.device not in (None, told.device)):
        return said
    asked = told.bytes or 0
    if said.bytes is not None and abs(said.bytes - asked) > _SAME_SIZE * asked:
        return said
    return told


def observe(device: torch.device) -> None:
    """A device was met for the first time: let its allocator tell what it refuses."""
    if device.type != "cpu":
        observer.attach(device.type)
