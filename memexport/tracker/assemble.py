"""From raw rows to an `EventBatch`: whatever can be worked out after the fact, for many rows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memexport.model import COLUMNS, NULLS, EventBatch, EventKind, Phase
from memexport.tracker import rows
from memexport.tracker.categories import Categories
from memexport.tracker.chunk import Derived, Ints, Positions, Rows
from memexport.tracker.rows import DEVICE_UNIT, Labels
from memexport.tracker.spans import STEP, PhaseRuns, Steps
from memexport.tracker.trace_context import ActiveTraces, give_to_markers

Columns = dict[str, npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_]

START = "start"
PEAK = "peak"
OOM = "oom"
"""What a source names a MARKER where a request for memory failed."""
DEVICE_FREE = "device_free"
"""The SAMPLE before it: what the device had left outside of the allocator."""


def _kinds(*kinds: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(DEVICE_UNIT), kinds)


# What is true of a kind of row, looked up by the kind.
_MOVES = _kinds(rows.ALLOCATION, rows.RELEASE, rows.CATEGORY)
_ABOUT_DEVICE = _kinds(
    rows.OPERATOR, rows.ALLOCATION, rows.RELEASE, rows.CATEGORY, rows.SAMPLE, rows.COUNTERS
)
_WORKS = _kinds(rows.OPERATOR, rows.BOUNDARY, rows.STEP)
_SIGN = np.zeros(DEVICE_UNIT, np.int64)
_SIGN[[rows.ALLOCATION, rows.RELEASE]] = 1, -1

_CALLS = _kinds(rows.OPERATOR, rows.IGNORED)

# Columns that the assembler fills with one value; and those that there are only on request.
_CONSTANT = ("rank",)
_DETAILS = ("inputs", "stack")
_TENSOR_BYTES = ("input_bytes", "output_bytes")
# What the SPAN of a step has no value of.
_NOT_OF_STEPS = ("module", "phase", "category", "device", "size_bytes", "allocated_bytes", "active_bytes",
                 "reserved_bytes", "address", *_DETAILS)  # fmt: skip


class Assembler:
    """Turns rows into batches, one chunk after another, and remembers what goes on from chunk to chunk.

    Args:
        labels: what codes and contexts stand for.
        clock_offset_ns: Unix time minus `time.perf_counter_ns()`.
        rank: written into every event; −1 for none.
        has_counters: whether the device with this index has an allocator that is asked.
        details: whether there are DETAILS rows.
        first_step, step_began: as for `Steps`.
    """

    def __init__(
        self,
        labels: Labels,
        clock_offset_ns: int,
        rank: int,
        has_counters: Callable[[int], bool],
        *,
        details: bool = False,
        first_step: int = 0,
        step_began: int | None = None,
    ) -> None:
        self._labels = labels
        self._offset = clock_offset_ns
        self._rank = rank
        self._counters = DeviceCounters(labels, has_counters)
        self._details = CallDetails() if details else None
        self._traces = ActiveTraces()
        self._categories = Categories(labels)
        self._steps = Steps(labels, first_step, step_began)
        phases = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
        self._phases = PhaseRuns(labels, phases, boundary=True, first_step=first_step)
        self._recomputations = PhaseRuns(labels, [Phase.RECOMPUTE], boundary=False, first_step=first_step)

    def batch(self, chunk: Rows, *, complete: bool) -> EventBatch:
        """The events of a chunk of rows, in the order of the rows, with derived events among them.

        `complete`: the forward, backward or optimizer step that it ends with does not go on in the next.
        """
        parsed = chunk
        columns = self._columns(parsed)
        active = self._traces.at(parsed)
        columns |= self._counters.columns(parsed, active)
        known = self._categories.read(parsed, complete=complete)
        columns |= {"category": known.category, "module": known.module}
        columns["kind"] = np.where(known.anew, np.uint8(rows.ALLOCATION), parsed.kind)
        columns |= _tensor_bytes(parsed)
        if self._details is not None:
            columns |= self._details.columns(parsed)
        if (parsed.kind == rows.REQUEST).any():
            columns |= self._requests(parsed, columns)
        is_bare = (parsed.kind == rows.STEP) & (parsed.first != 0)
        if is_bare.any():
            columns |= self._bare_steps(parsed, columns, is_bare)
        columns["step"], derived = self._steps.read(parsed)
        works = np.flatnonzero(_WORKS[parsed.kind])
        derived += self._recomputations.read(parsed, works) + self._phases.read(parsed, works)
        if active is not None:
            of_markers = np.where(columns["kind"] == rows.MARKER, active, 0).astype(np.uint32)
            columns["inputs"] = of_markers | columns.get("inputs", np.uint32(0))
            give_to_markers(derived, active)
        return self._merge(columns, np.flatnonzero(columns["kind"] <= rows.MARKER), derived)

    def last_batch(self, now: int) -> EventBatch:
        """What is only known at the end: phases and the step still open, and each device's "peak"."""
        derived = self._recomputations.close() + self._phases.close() + self._steps.close(now)
        derived += self._counters.peak_markers()
        left_out = {*_CONSTANT, *_TENSOR_BYTES} | ({*_DETAILS} if self._details is None else set())
        left_out -= {"inputs"} if self._traces.seen else set()
        nothing = {name: np.empty(0, dtype) for name, dtype in COLUMNS.items() if name not in left_out}
        return self._merge(nothing, np.empty(0, np.intp), derived)

    def _columns(self, chunk: Rows) -> Columns:
        """The columns that rows carry as they are."""
        labels, kind = self._labels, chunk.kind
        is_operator = kind == rows.OPERATOR
        moves = _MOVES[kind]
        size = np.where(moves, chunk.first, NULLS["size_bytes"])
        return {
            "time_unix_ns": chunk.time + self._offset,
            "duration_ns": np.where(is_operator | (kind == rows.SPAN), chunk.first - chunk.time, 0),
            "name": np.array(labels.names, np.uint32)[chunk.label],
            "thread": chunk.thread,
            "phase": chunk.phase,
            "device": np.where(_ABOUT_DEVICE[kind], chunk.device, np.int32(NULLS["device"])),
            "size_bytes": np.where(is_operator, chunk.second, size),
            "address": np.where(moves, chunk.second, 0).view(np.uint64),
        }

    def _bare_steps(self, chunk: Rows, columns: Columns, where: Mask) -> Columns:
        """The columns with a SPAN for each step that was not recorded in detail: there may be millions."""
        nothing = {name: NULLS[name] for name in _NOT_OF_STEPS if name in columns}
        values: dict[str, Any] = {
            "kind": np.uint8(rows.SPAN),
            "time_unix_ns": chunk.first + self._offset,
            "duration_ns": chunk.time - chunk.first,
            "name": np.uint32(self._labels.tables.strings.intern(STEP)),
            **nothing,
        }
        return {name: np.where(where, value, columns[name]) for name, value in values.items()}

    def _requests(self, chunk: Rows, columns: Columns) -> Columns:
        """The columns with requests that failed in them: a MARKER each, and a SAMPLE of what was left."""
        is_request = chunk.kind == rows.REQUEST
        is_marker = columns["name"] == self._labels.tables.strings.find(OOM)
        kind = np.where(is_marker, np.uint8(rows.MARKER), np.uint8(rows.SAMPLE))
        size = np.where(chunk.first < 0, NULLS["size_bytes"], chunk.first)
        return {
            "kind": np.where(is_request, kind, columns["kind"]),
            "device": np.where(is_request, chunk.device, columns["device"]),
            "size_bytes": np.where(is_request, size, columns["size_bytes"]),
            "stack": np.where(is_request, chunk.second, columns.get("stack", 0)).astype(np.uint32),
        }

    def _merge(self, columns: Columns, keep: Positions, derived: list[Derived]) -> EventBatch:
        """The kept rows, and each derived event after its row."""
        if derived:
            order = np.argsort(np.concatenate([keep, [d.after for d in derived]]), kind="stable")
            length = len(next(iter(columns.values())))
            keep = np.concatenate([keep, length + np.arange(len(derived))])[order]
            columns = {name: self._extended(name, values, derived) for name, values in columns.items()}
        return EventBatch(**{name: values[keep] for name, values in columns.items()}, rank=self._rank)

    def _extended(self, name: str, values: npt.NDArray[Any], derived: list[Derived]) -> npt.NDArray[Any]:
        offset = self._offset if name == "time_unix_ns" else 0
        more = [d.values.get(name, NULLS[name]) + offset for d in derived]
        return np.concatenate([values, np.array(more, COLUMNS[name]).astype(values.dtype)])


def _tensor_bytes(chunk: Rows) -> Columns:
    """`input_bytes` and `output_bytes`, where a module call's are known."""
    calls = np.flatnonzero((chunk.kind[:-1] == rows.SPAN) & (chunk.kind[1:] == rows.TENSORS))
    if not len(calls):
        return {}
    columns = {name: np.full(len(chunk), NULLS[name], np.int64) for name in _TENSOR_BYTES}
    for name, told in zip(_TENSOR_BYTES, (chunk.time, chunk.first), strict=True):
        columns[name][calls] = told[calls + 1]
    return columns


class CallDetails:
    """Gives what DETAILS rows say to the operator that follows in their thread, and to its allocations."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int]] = {}

    def columns(self, chunk: Rows) -> Columns:
        """`inputs` of operators, `stack` of operators and allocations."""
        inputs, stack = np.zeros((2, len(chunk)), np.uint32)
        threads = np.unique(chunk.thread[chunk.kind == rows.DETAILS]).tolist()
        for thread in {*threads, *self._open}:
            here = np.flatnonzero(chunk.thread == thread)
            inputs[here], stack[here] = self._of_thread(thread, chunk, here)
        inputs[chunk.kind != rows.OPERATOR] = 0
        stack[(chunk.kind != rows.OPERATOR) & (chunk.kind != rows.ALLOCATION)] = 0
        return {"inputs": inputs, "stack": stack}

    def _of_thread(self, thread: int, chunk: Rows, here: Positions) -> tuple[Ints, Ints]:
        """For each row, the DETAILS of the call in which it lies; 0 between calls."""
        kind = chunk.kind[here]
        opens = np.flatnonzero(kind == rows.DETAILS)
        closes = np.flatnonzero(_CALLS[kind])
        # Row 0 of the lookup stands for the call that the last chunk ended in.
        before = self._open.pop(thread, (0, 0))
        looked_up = np.vstack([before, np.stack((chunk.time, chunk.first), axis=1)[here[opens]]])
        latest = np.searchsorted(opens, np.arange(len(here)), side="right")
        opened = np.concatenate([[-1], opens])[latest]
        closed_since = np.searchsorted(closes, np.arange(len(here))) > np.searchsorted(
            closes, opened, "right"
        )
        details = np.where(closed_since[:, None], 0, looked_up[latest])
        if len(here) and not _CALLS[kind[-1]] and not closed_since[-1]:
            self._open[thread] = tuple(looked_up[-1].tolist())
        return details[:, 0], details[:, 1]


@dataclass
class _Device:
    """One device: what is tracked there now, and the highest `allocated` so far with where it was."""

    has_counters: bool
    tracked: int = 0
    peak: int = -1
    peak_values: dict[str, int] | None = None


class DeviceCounters:
    """The counters after each row, per device, and where they peaked.

    A device with an allocator of its own is asked after each of its operators. Between, its counters are
    unknown, except at its highest moments and where it has told of itself; COUNTERS rows say which. On any
    other, `allocated` is the sum of the live storages, in a SAMPLE with what an operator took inside besides,
    and `active` the same; nothing is reserved there that anyone could count.
    """

    def __init__(self, labels: Labels, has_counters: Callable[[int], bool]) -> None:
        self._has_counters = has_counters
        self._devices: list[_Device] = []
        self._peak_name = labels.tables.strings.intern(PEAK)

    def columns(self, chunk: Rows, active: Ints | None) -> Columns:
        """`allocated_bytes`, `active_bytes`, `reserved_bytes`; `active` are the traceparents of the rows."""
        unknown = np.full((3, len(chunk)), NULLS["allocated_bytes"], np.int64)
        about_device = _ABOUT_DEVICE[chunk.kind]
        several = bool(chunk.device.any())
        for index in range(int(chunk.device.max(initial=0)) + 1):
            if index == len(self._devices):
                self._devices.append(_Device(self._has_counters(index)))
            here = np.flatnonzero(about_device & (chunk.device == index) if several else about_device)
            if len(here):
                self._fill(self._devices[index], chunk, here, unknown)
                self._note_peak(self._devices[index], chunk, here, unknown, active)
        allocated, active, reserved = unknown
        return {"allocated_bytes": allocated, "active_bytes": active, "reserved_bytes": reserved}

    def peak_markers(self) -> list[Derived]:
        """A MARKER "peak" for each device on which anything was counted."""
        return [Derived(0, d.peak_values) for d in self._devices if d.peak_values is not None]

    def _fill(self, device: _Device, chunk: Rows, here: Ints, counters: Ints) -> None:
        if device.has_counters:
            # Appended in one go with the row that it is for, and never cut from it.
            read = np.flatnonzero(chunk.kind[here] == rows.COUNTERS)
            counters[:, here[read - 1]] = np.stack((chunk.time, chunk.first, chunk.second))[:, here[read]]
        else:
            kind, size = chunk.kind[here], chunk.first[here]
            tracked = device.tracked + np.cumsum(size * _SIGN[kind])
            device.tracked = int(tracked[-1])
            inside = np.where(kind == rows.SAMPLE, size, 0)
            counters[0, here] = counters[1, here] = tracked + inside

    def _note_peak(
        self, device: _Device, chunk: Rows, here: Ints, counters: Ints, active: Ints | None
    ) -> None:
        at = int(here[counters[0, here].argmax()])
        if counters[0, at] <= device.peak:
            return
        device.peak = int(counters[0, at])
        ended = chunk.first[at] if chunk.kind[at] == rows.OPERATOR else chunk.time[at]
        device.peak_values = {
            "kind": EventKind.MARKER,
            "time_unix_ns": int(ended),
            "duration_ns": 0,
            "name": self._peak_name,
            "device": int(chunk.device[at]),
            "allocated_bytes": device.peak,
            "active_bytes": int(counters[1, at]),
            "reserved_bytes": int(counters[2, at]),
            "module": int(chunk.module[at]),
            "phase": int(chunk.phase[at]),
            "thread": int(chunk.thread[at]),
            "inputs": 0 if active is None else int(active[at]),
        }
