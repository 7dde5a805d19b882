"""Makes a trace's rows, in the order of their end, into batches of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.model import NULLS, UNKNOWN_SIZE, EventBatch, EventKind
from memexport.sources._kineto_counters import Counters
from memexport.sources._kineto_events import Rows
from memexport.sources._kineto_kinds import Kind, Role

_SPAN: Final = EventKind.SPAN
_EVENT_KINDS: Final = np.array(
    [EventKind.RELEASE, EventKind.MARKER, EventKind.OPERATOR, _SPAN, _SPAN, _SPAN], np.uint8
)
"""By `Role`; what `Role.MEMORY` is made into depends on its bytes."""

Column = npt.NDArray[Any]


class Steps:
    """The steps of a trace, and which of them a moment lies in. A step is one on all threads."""

    def __init__(self, rows: Rows, kinds: list[Kind]) -> None:
        """Take the rows of the steps, in any order."""
        rows = rows[np.argsort(rows["begin"], kind="stable")]
        self._begin, self._end = rows["begin"].copy(), rows["end"].copy()
        self._number = np.array([kinds[kind].step for kind in rows["kind"].tolist()], np.int32)

    def at(self, times: Column) -> Column:
        """The number of the step that was running; −1 if none was."""
        if not len(self._begin):
            return np.full(len(times), NULLS["step"], np.int32)
        last = np.searchsorted(self._begin, times, side="right") - 1
        inside = (last >= 0) & (times <= self._end[last])
        return np.where(inside, self._number[last], NULLS["step"])


@dataclass(frozen=True)
class Meaning:
    """What the numbers in a trace's rows stand for.

    Attributes:
        kinds: what `kind` indexes.
        device: the number in `RecordingInfo.devices` of each device in the rows.
        thread: the string id of each thread.
        steps: all of the trace.
        base_ns: what to add to a time.
        rank: of the process, or −1.
    """

    kinds: list[Kind]
    device: Column
    thread: Column
    steps: Steps
    base_ns: int
    rank: int


class BatchMaker:
    """Makes the batches of one pass over the rows, in order."""

    def __init__(self, meaning: Meaning, counters: Counters) -> None:
        self._meaning = meaning
        self._counters = counters
        self._role = np.array([kind.role for kind in meaning.kinds], np.uint8)
        self._name = np.array([kind.name for kind in meaning.kinds], np.uint32)
        self._step_name = next((kind.name for kind in meaning.kinds if kind.role == Role.STEP), 0)
        # One place more, which −1 means.
        self._device = np.append(meaning.device, NULLS["device"])

    def batch(self, rows: Rows) -> EventBatch:
        """The `PLACED` rows as events."""
        meaning, role = self._meaning, self._role[rows["kind"]]
        is_memory, is_operator = role == Role.MEMORY, role == Role.OPERATOR
        kind = _EVENT_KINDS[role]
        kind[is_memory & (rows["bytes"] > 0)] = EventKind.ALLOCATION
        # torch reports no change of 0 bytes; if there is one, it still tells the counters.
        kind[is_memory & (rows["bytes"] == 0)] = EventKind.SAMPLE
        is_call, name = role > Role.OUT_OF_MEMORY, self._name[rows["kind"]]
        # With a number, it would be taken for one of the profiler's.
        is_called_step = (role == Role.ANNOTATION) & (name == self._step_name)
        return EventBatch(
            kind=kind,
            time_unix_ns=rows["begin"] + meaning.base_ns,
            duration_ns=np.where(is_call, rows["end"] - rows["begin"], NULLS["duration_ns"]),
            name=np.where(is_memory, rows["operator"], name),
            module=np.where(is_operator | is_memory | (role == Role.MODULE), rows["module"], 0),
            thread=meaning.thread[rows["thread"]],
            phase=rows["phase"],
            device=np.where(is_operator, rows["net_device"], self._device[rows["device"]]),
            step=np.where(is_called_step, NULLS["step"], meaning.steps.at(rows["begin"])),
            rank=meaning.rank,
            size_bytes=_sizes(rows, is_operator, is_call, kind),
            allocated_bytes=self._counters.allocated(rows),
            reserved_bytes=np.where(is_memory, rows["reserved"], NULLS["reserved_bytes"]),
            address=np.where(is_memory, rows["address"], 0),
        )


def _sizes(rows: Rows, is_operator: Column, is_call: Column, kind: Column) -> Column:
    sizes = np.where(is_operator, rows["net"], np.abs(rows["bytes"]))
    sizes[(is_call & ~is_operator) | (kind == EventKind.SAMPLE)] = UNKNOWN_SIZE
    return sizes
