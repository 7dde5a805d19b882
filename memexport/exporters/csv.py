"""Writes comma-separated values (`.csv`, `.csv.gz`): a line per event, for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.exporters._text import Fragments, TextFile, lines, numbers
from memexport.exporters.destination import Destination
from memexport.model import NULLS, Category, EventBatch, EventKind, Phase, RecordingEnd, RecordingInfo, Tables

_WHERE: Final = ("name", "module", "phase", "category", "device", "step", "rank", "thread")
_AFTER: Final = ("size_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "address")
_COLUMNS: Final = ("kind", "time_unix_ns", "duration_ns", *_WHERE, *_AFTER)
_LARGEST_CODE: Final = 2**62
# What only some recordings have, by the recorder's option.
_ON_REQUEST: Final = {"record_shapes": "inputs", "record_stacks": "stack"}
_LINE_END: Final = "\r\n"
_TO_QUOTE: Final = frozenset(',"\r\n')
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class CsvExporter:
    """The columns of every JSON line, after a line with their names; RFC 4180 with UTF-8.

    What is not known is an empty field. Kinds, phases and categories are the enums' names in lower case, a
    device is its name ("cuda:0"), an address an integer. Recordings with shapes have one more column,
    "inputs"; those with stacks one more, "stack": "file:line:function" in lines, innermost first.

    A name that a spreadsheet would take for a formula (it begins with = + - @, a tab or a carriage return)
    gets an apostrophe in front: a recording may come from someone else, and a spreadsheet runs formulas.
    """

    def __init__(self, destination: Destination) -> None:
        self._file = TextFile(destination)

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file and write the columns' names."""
        strings, devices = tables.strings, info.devices
        self._strings = Fragments(lambda id_: field(strings.get(id_)))
        self._devices = Fragments(lambda index: field(str(devices[index]) if index >= 0 else None))
        self._kinds = Fragments(lambda kind: EventKind(kind).name.lower())
        self._phases = Fragments(lambda phase: Phase(phase).name.lower() if phase else "")
        self._categories = Fragments(lambda category: Category(category).name.lower() if category else "")
        self._stacks = Fragments(lambda id_: _stack(tables, id_))
        self._on_request = [
            name for option, name in _ON_REQUEST.items() if info.options.get(option) == "true"
        ]
        columns = (*_COLUMNS, *self._on_request)
        pieces = len(columns) - len(_WHERE) + 1
        self._template = ",".join(["%s"] * pieces) + _LINE_END
        self._file.open()
        self._file.write(",".join(columns) + _LINE_END)

    def write(self, batch: EventBatch) -> None:
        """Write a line for each event."""
        self._file.write("".join(lines(self._template, *self._columns(batch))))

    def end(self, end: RecordingEnd) -> None:  # noqa: ARG002 - an Exporter's interface
        """Put the file in its place. What else is known at the end is not an event, and is left out."""
        self._file.close()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._file.discard()

    def _columns(self, batch: EventBatch) -> Iterable[Iterable[Any]]:
        """Every placeholder of the template, for all rows."""
        yield self._kinds.of(batch.kind)
        yield batch.time_unix_ns.tolist()
        yield _numbers("duration_ns", batch.duration_ns)
        yield self._where(batch)
        for name in _AFTER:
            yield _numbers(name, getattr(batch, name))
        for name in self._on_request:
            yield self._stacks.of(batch.stack) if name == "stack" else self._strings.of(_inputs(batch))

    def _where(self, batch: EventBatch) -> Iterable[str]:
        """The columns `_WHERE` as one piece of text: few of their combinations make up most events."""
        columns = [getattr(batch, name) for name in _WHERE]
        first, place = _distinct(columns)
        texts = [self._text(*values) for values in zip(*(c[first].tolist() for c in columns), strict=True)]
        return map(texts.__getitem__, place.tolist())

    def _text(
        self,
        name: int,
        module: int,
        phase: int,
        category: int,
        device: int,
        step: int,
        rank: int,
        thread: int,
    ) -> str:
        strings = self._strings
        what = (strings[name], strings[module], self._phases[phase], self._categories[category])
        numbered = ("" if number < 0 else str(number) for number in (step, rank))
        return ",".join((*what, self._devices[device], *numbered, strings[thread]))


def field(text: str | None) -> str:
    """The text as a field; nothing for what is not known."""
    if not text:
        return ""
    if text.startswith(_FORMULA):
        text = f"'{text}"
    if _TO_QUOTE.isdisjoint(text):
        return text
    return '"' + text.replace('"', '""') + '"'


def _numbers(name: str, values: npt.NDArray[Any]) -> list[Any]:
    null = NULLS[name]
    if (values == null).all():
        return [""] * len(values)
    return numbers(values, null, "")


def _distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The first row of each combination of values, and for each row, which combination it has."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        low = int(column.min(initial=0))
        span = int(column.max(initial=0)) - low + 1
        if span >= _LARGEST_CODE // (int(code.max(initial=0)) + 1):
            _, code = np.unique(code, return_inverse=True)
        code = code * span + (column.astype(np.int64) - low)
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    return first, place


def _inputs(batch: EventBatch) -> npt.NDArray[Any]:
    """Those of OPERATORs; a MARKER's are a trace's context, which is none."""
    return np.where(batch.kind == EventKind.MARKER, 0, batch.inputs)


def _stack(tables: Tables, stack_id: int) -> str:
    frames = tables.stacks.frames(stack_id)
    return field("\n".join(tables.strings[frame] for frame in reversed(frames)))
