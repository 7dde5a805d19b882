"""Steps and phases: the spans and markers that follow from which operators ran when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.model import EventKind, Phase
from memexport.tracker import rows
from memexport.tracker.chunk import Derived, Ints, Positions, Rows
from memexport.tracker.rows import Labels

STEP: Final = "step"
BOUNDARY: Final = "fw_bw_boundary"


class Steps:
    """Numbers the training steps, and makes a SPAN and a MARKER of each that was recorded in detail.

    Args:
        labels: interns names.
        first_step: the number of the first one.
        began: when that began (`time.perf_counter_ns`); None: with the first row.
    """

    def __init__(self, labels: Labels, first_step: int = 0, began: int | None = None) -> None:
        self._name = labels.tables.strings.intern(STEP)
        self._step = first_step
        self._began = began
        self._worked = False
        self._thread = 0

    def read(self, chunk: Rows) -> tuple[Ints, list[Derived]]:
        """The column `step`, and the recorded steps that end in this chunk."""
        is_end = chunk.kind == rows.STEP
        step = self._step + np.cumsum(is_end) - is_end
        if self._began is None and len(chunk):
            self._began = int(chunk.time[0])
        bounds = np.flatnonzero(is_end | (chunk.kind == rows.BEGINS))
        times = chunk.time[bounds].tolist()
        derived: list[Derived] = []
        for index in np.flatnonzero((is_end & (chunk.first == 0))[bounds]).tolist():
            end = int(bounds[index])
            began = times[index - 1] if index else self._began
            self._thread = int(chunk.thread[end])
            derived += self._events(end, int(step[end]), began, times[index])
        self._go_on(chunk, int(is_end.sum()), bounds)
        return step, derived

    def close(self, now: int) -> list[Derived]:
        """The step that is open, if anything ran in it: without a marker, for nobody said that it ended."""
        return self._events(0, self._step, self._began, now)[:1] if self._worked else []

    def _go_on(self, chunk: Rows, ended: int, bounds: Ints) -> None:
        works = np.flatnonzero(chunk.kind == rows.OPERATOR)
        self._step += ended
        if len(bounds):
            self._began, self._worked = int(chunk.time[bounds[-1]]), False
        if len(works):
            self._thread = int(chunk.thread[works[-1]])
            self._worked |= not len(bounds) or bool(works[-1] > bounds[-1])

    def _events(self, row: int, step: int, began: int | None, now: int) -> list[Derived]:
        common = {"name": self._name, "step": step, "thread": self._thread}
        began = now if began is None else began
        span = {"kind": EventKind.SPAN, "time_unix_ns": began, "duration_ns": now - began, **common}
        marker = {"kind": EventKind.MARKER, "time_unix_ns": now, "duration_ns": 0, **common}
        return [Derived(row, span), Derived(row, marker)]


@dataclass
class _Run:
    """A phase that goes on in a thread."""

    phase: Phase
    began: int
    ended: int
    step: int


class PhaseRuns:
    """Makes a SPAN of each stretch of operators that a thread spends in one of `phases`.

    RECOMPUTE counts as BACKWARD where it is not one of them: it happens inside it.

    Args:
        labels: what contexts stand for.
        phases: those that become spans.
        boundary: also make a MARKER where a forward turns into its backward.
        first_step: the number of the first step.
    """

    def __init__(
        self, labels: Labels, phases: Sequence[Phase], *, boundary: bool, first_step: int = 0
    ) -> None:
        self._boundary = boundary
        intern = labels.tables.strings.intern
        self._names = {phase: intern(phase.name.lower()) for phase in phases}
        self._boundary_name = intern(BOUNDARY)
        self._shown = np.array([phase if phase in phases else 0 for phase in Phase], np.uint8)
        if Phase.RECOMPUTE not in phases:
            self._shown[Phase.RECOMPUTE] = Phase.BACKWARD
        self._open: dict[int, _Run] = {}
        self._latest = Phase.UNKNOWN
        self._step = first_step

    def read(self, chunk: Rows, works: Positions) -> list[Derived]:
        """The spans that end in this chunk and the boundaries in it; `works` are the rows with a phase."""
        shown = self._shown[chunk.phase[works]]
        is_step = chunk.kind[works] == rows.STEP
        shown[is_step] = 0  # no phase goes on from step to step
        threads = chunk.thread[works]
        derived: list[Derived] = []
        for first, last in _runs(shown, threads):
            begin, end = int(works[first]), int(works[last])
            ended = int(max(chunk.first[works[first : last + 1]].max(), chunk.time[end]))
            # Before its first operator begins, for it holds it: between two events lie many nanoseconds.
            began = int(chunk.time[begin]) - 1
            run = _Run(Phase(int(shown[first])), began, ended, self._step)
            derived += self._go_on(int(threads[first]), run, begin - 1)
            if is_step[first : last + 1].any():
                # In the other threads too: the engine's run nothing else that would end their backward.
                row = int(works[first + int(is_step[first : last + 1].argmax())]) - 1
                derived += [self._span(row, of, open_) for of, open_ in self._open.items()]
                self._open.clear()
                self._step += int(np.count_nonzero(is_step[first : last + 1]))
        return derived

    def close(self) -> list[Derived]:
        """The spans that are still open."""
        derived = [self._span(0, thread, run) for thread, run in self._open.items()]
        self._open.clear()
        return derived

    def _go_on(self, thread: int, run: _Run, row: int) -> list[Derived]:
        """A stretch of one phase in one thread: more of what is open there, or something new.

        What ends or turns into another phase by it stands after `row`, the one before the stretch.
        """
        before = self._open.get(thread)
        if before is not None and before.phase == run.phase:
            before.ended = max(before.ended, run.ended)
            return []
        derived = []
        if before is not None:
            derived.append(self._span(row, thread, self._open.pop(thread)))
        if run.phase is not Phase.UNKNOWN:
            self._open[thread] = run
            if self._boundary and run.phase is Phase.BACKWARD and self._latest is Phase.FORWARD:
                derived.append(self._boundary_marker(row, thread, run))
            self._latest = run.phase
        return derived

    def _span(self, row: int, thread: int, run: _Run) -> Derived:
        values = {
            "kind": EventKind.SPAN,
            "time_unix_ns": run.began,
            "duration_ns": run.ended - run.began,
            "name": self._names[run.phase],
            "phase": run.phase,
            "step": run.step,
            "thread": thread,
        }
        return Derived(row, values)

    def _boundary_marker(self, row: int, thread: int, run: _Run) -> Derived:
        values = {
            "kind": EventKind.MARKER,
            "time_unix_ns": run.began,
            "duration_ns": 0,
            "name": self._boundary_name,
            "phase": run.phase,
            "step": run.step,
            "thread": thread,
        }
        return Derived(row, values)


def _runs(shown: npt.NDArray[np.uint8], threads: npt.NDArray[np.uint32]) -> list[tuple[int, int]]:
    """First and last index of each stretch of equal phase and thread."""
    if not len(shown):
        return []
    changes = np.flatnonzero((shown[1:] != shown[:-1]) | (threads[1:] != threads[:-1]))
    firsts = np.concatenate([[0], changes + 1]).tolist()
    lasts = np.concatenate([changes, [len(shown) - 1]]).tolist()
    return list(zip(firsts, lasts, strict=True))
