"""Makes the batches of a recording from what is in a ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.model import EventBatch
from memexport.tracker import rows
from memexport.tracker.assemble import START, Assembler
from memexport.tracker.chunk import Rows
from memexport.tracker.held import HeldRows
from memexport.tracker.oom.ring import Baseline, Contents
from memexport.tracker.rows import DEVICE_UNIT, ROW_DTYPE, Labels

MakeAssembler = Callable[[int, int | None], Assembler]
"""An assembler whose first step has this number, and began then (`time.perf_counter_ns`; None: at once)."""

_FOR_GOOD_NS: Final = 2**62


def batches(
    contents: Contents, labels: Labels, make_assembler: MakeAssembler, now: int
) -> Iterator[EventBatch]:
    """The whole recording: what lived before the first row, MARKER "start", the rows, what follows from them.

    `now` is `time.perf_counter_ns` of its end.
    """
    baseline = contents.baseline
    assembler = make_assembler(baseline.steps, _began(contents))
    if baseline.dropped_events or len(baseline.rows):
        yield from _before(contents, labels, assembler)
    held = HeldRows(labels, _FOR_GOOD_NS)
    for chunk in contents.chunks:
        for ready in held.add(chunk):
            yield assembler.batch(ready.rows, complete=ready.complete)
    for ready in held.rest():
        yield assembler.batch(ready.rows, complete=ready.complete)
    yield assembler.last_batch(now)


def _began(contents: Contents) -> int | None:
    """When the step began that the first row is in; of one that began before that, a part is left."""
    baseline = contents.baseline
    if not baseline.dropped_events:
        return None
    return baseline.step_began if baseline.step_began is not None else _first_time(contents)


def _before(contents: Contents, labels: Labels, assembler: Assembler) -> Iterator[EventBatch]:
    """The allocations that live, each as it was made, and the start."""
    baseline = contents.baseline
    if len(baseline.rows):
        batch = assembler.batch(Rows.parse(_rows(baseline).tobytes(), labels), complete=True)
        is_allocation = _kind(baseline.rows) == rows.ALLOCATION
        yield EventBatch(**(batch.columns() | {"step": baseline.rows["step"][is_allocation]}))
    start = rows.ROW.pack(labels.code(rows.MARKER, START), 0, _first_time(contents), 0, 0)
    yield assembler.batch(Rows.parse(start, labels), complete=True)


def _rows(baseline: Baseline) -> npt.NDArray[Any]:
    """The rows that are left, each with a stack inside a call that has it."""
    kept = baseline.rows
    plain = np.empty(len(kept), ROW_DTYPE)
    for name in ROW_DTYPE.names or ():
        plain[name] = kept[name]
    if not kept["stack"].any():
        return plain
    opens, closes = np.zeros((2, len(kept)), ROW_DTYPE)
    opens["code"], opens["first"], closes["code"] = rows.DETAILS, kept["stack"], rows.IGNORED
    opens["context"] = closes["context"] = kept["context"]
    return np.stack((opens, plain, closes), axis=1).reshape(-1)


def _kind(kept: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kind: npt.NDArray[Any] = kept["code"] & (DEVICE_UNIT - 1)
    return kind


def _first_time(contents: Contents) -> int:
    """Of the first row, which a ring always has."""
    return int(np.frombuffer(contents.chunks[0], ROW_DTYPE, count=1)["time"][0])
