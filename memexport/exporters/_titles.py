"""What the slices of a trace are: their kinds and titles, for whole columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from memexport.analysis.text import operator_label
from memexport.model import UNKNOWN_SIZE, EventBatch, EventKind, Phase, StringTable

SliceKind = Literal["operator", "module", "phase", "step", "annotation"]
SLICE_KINDS: Final[tuple[SliceKind, ...]] = ("operator", "module", "phase", "step", "annotation")

_SLICE_COLUMNS: Final = (
    "kind",
    "name",
    "module",
    "thread",
    "phase",
    "step",
    "rank",
    "size_bytes",
    "allocated_bytes",
    "inputs",
    "input_bytes",
    "output_bytes",
    "stack",
)

OPERATOR, MODULE, PHASE, STEP, ANNOTATION = range(5)


def _slice_kinds(events: EventBatch, strings: StringTable) -> npt.NDArray[np.int8]:
    """The place in `SLICE_KINDS` of each event of a batch that holds OPERATORs and SPANs only."""
    kinds = np.full(len(events), OPERATOR, np.int8)
    is_span = events.kind == EventKind.SPAN
    if is_span.any():
        kinds[is_span] = _span_kinds(events.select(is_span), strings)
    return kinds


def _span_kinds(spans: EventBatch, strings: StringTable) -> npt.NDArray[np.int8]:
    kinds = np.full(len(spans), ANNOTATION, np.int8)
    step_name = strings.find("step")
    if step_name is not None:
        kinds[(spans.name == step_name) & (spans.step >= 0)] = STEP
    for phase in Phase:
        phase_name = strings.find(phase.name.lower())
        if phase_name is not None:
            kinds[(spans.name == phase_name) & (spans.phase == phase)] = PHASE
    kinds[spans.module != 0] = MODULE
    return kinds


@dataclass(frozen=True)
class Titles:
    """What slices are called, as ids that are still to be looked up.

    Attributes:
        kind: the place in `SLICE_KINDS`.
        name: a string id; of a step, its number.
        text: the string id of an operator's module or a module's class; 0 for none.
        size_bytes: of an operator; else `UNKNOWN_SIZE`.
    """

    kind: npt.NDArray[np.int8]
    name: npt.NDArray[Any]
    text: npt.NDArray[Any]
    size_bytes: npt.NDArray[Any]


def drawn_as_slices(batch: EventBatch) -> tuple[EventBatch, npt.NDArray[np.intp]]:
    """The OPERATORs and SPANs with only those columns that say what and where they are, and their places."""
    rows = np.flatnonzero((batch.kind == EventKind.OPERATOR) | (batch.kind == EventKind.SPAN))
    return EventBatch(**{name: getattr(batch, name)[rows] for name in _SLICE_COLUMNS}), rows


def titles(events: EventBatch, strings: StringTable) -> Titles:
    """The titles of a batch of OPERATORs and SPANs only. A module is called by its path, not its class."""
    kind = _slice_kinds(events, strings)
    is_operator, is_module, is_step = kind == OPERATOR, kind == MODULE, kind == STEP
    return Titles(
        kind,
        name=np.where(is_module, events.module, np.where(is_step, events.step, events.name)),
        text=np.where(is_operator, events.module, np.where(is_module, events.name, 0)),
        size_bytes=np.where(is_operator, events.size_bytes, UNKNOWN_SIZE),
    )


def operator_overload(name: str) -> str | None:
    """The overload that `operator_label` leaves out: of `aten.add.Tensor`, `Tensor`. None for `default`."""
    parts = name.split(".")
    return parts[2] if len(parts) == 3 and all(parts) and parts[2] != "default" else None


def label(kind: int, name: int, strings: StringTable) -> str:
    """The text of a slice's name, from its kind and `Titles.name`."""
    if kind == STEP:
        return f"step {name}"
    text: str = strings[name] if name else "(unknown)"
    return operator_label(text) if kind == OPERATOR else text
