"""Writes one JSON object per event and line (`.jsonl`, `.jsonl.gz`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from memexport.exporters._text import Fragments, TextFile, lines, numbers, quoted
from memexport.exporters.destination import Destination
from memexport.model import NULLS, Category, EventBatch, EventKind, Phase, RecordingEnd, RecordingInfo, Tables

_TEMPLATE: Final = (
    '{"kind":%s,"time_unix_ns":%d,"duration_ns":%s,"name":%s,"module":%s,"phase":%s,"category":%s,"device":%s,'
    '"step":%s,"rank":%s,"thread":%s,"size_bytes":%s,"allocated_bytes":%s,"active_bytes":%s,'
    '"reserved_bytes":%s,"address":%s'
)
# What only some recordings have, by the recorder's option.
_LAST: Final = "}\n"
_LAST_OF_SOME: Final = "%s}\n"
_ON_REQUEST: Final = {"record_shapes": ',"inputs":%s', "record_stacks": ',"stack":%s'}


class JsonlExporter:
    """Lines for scripts: the same keys in the same order in every line, null for what is not known.

    Kinds, phases and categories are the enums' names in lower case, a device is its name ("cuda:0"), an
    address an integer. Without a clock (`clock = "index"`), `time_unix_ns` is the event's number × 1000.

    Recordings with shapes have one more key, "inputs" (text); those with stacks one more, "stack": a list of
    "file:line:function", innermost first. Two kinds of lines have more keys at their end: a MARKER for which
    an OpenTelemetry span was active "traceparent" (text), a module's call "input_bytes" and "output_bytes".
    """

    def __init__(self, destination: Destination) -> None:
        self._file = TextFile(destination)

    def begin(self, info: RecordingInfo, tables: Tables) -> None:
        """Open the file."""
        strings, devices = tables.strings, info.devices
        self._strings = Fragments(lambda id_: quoted(strings.get(id_)))
        self._devices = Fragments(lambda index: quoted(str(devices[index]) if index >= 0 else None))
        self._kinds = Fragments(lambda kind: quoted(EventKind(kind).name.lower()))
        self._phases = Fragments(lambda value: quoted(Phase(value).name.lower() if value else None))
        self._categories = Fragments(
            lambda category: quoted(Category(category).name.lower() if category else None)
        )
        self._traces = Fragments(lambda id_: f',"traceparent":{quoted(strings.get(id_))}')
        self._stacks = Fragments(lambda id_: _stack(tables, id_))
        self._on_request = [name for name in _ON_REQUEST if info.options.get(name) == "true"]
        self._template = _TEMPLATE + "".join(_ON_REQUEST[name] for name in self._on_request)
        self._file.open()

    def write(self, batch: EventBatch) -> None:
        """Write a line for each event."""
        columns, last = self._columns(batch), self._last_keys(batch)
        if last:
            text = lines(self._template + _LAST_OF_SOME, *columns, last)
        else:
            text = lines(self._template + _LAST, *columns)
        self._file.write("".join(text))

    def end(self, end: RecordingEnd) -> None:  # noqa: ARG002 - an Exporter's interface
        """Put the file in its place. What else is known at the end is not an event, and is left out."""
        self._file.close()

    def abort(self) -> None:
        """Leave no half-written file behind."""
        self._file.discard()

    def _columns(self, batch: EventBatch) -> list[Iterable[Any]]:
        """Every placeholder of the template, for all rows."""

        def shown(name: str) -> list[Any]:
            return numbers(getattr(batch, name), NULLS[name], "null")

        return [
            self._kinds.of(batch.kind),
            batch.time_unix_ns.tolist(),
            shown("duration_ns"),
            self._strings.of(batch.name),
            self._strings.of(batch.module),
            self._phases.of(batch.phase),
            self._categories.of(batch.category),
            self._devices.of(batch.device),
            shown("step"),
            shown("rank"),
            self._strings.of(batch.thread),
            shown("size_bytes"),
            shown("allocated_bytes"),
            shown("active_bytes"),
            shown("reserved_bytes"),
            shown("address"),
            *(self._detail(name, batch) for name in self._on_request),
        ]

    def _last_keys(self, batch: EventBatch) -> list[str]:
        """What comes last in each line, for the few that have more to say; empty if none has."""
        traced = np.flatnonzero((batch.kind == EventKind.MARKER) & (batch.inputs != 0))
        calls = np.flatnonzero((batch.input_bytes >= 0) | (batch.output_bytes >= 0))
        if not len(traced) and not len(calls):
            return []
        last = [""] * len(batch)
        for row, trace in zip(traced.tolist(), self._traces.of(batch.inputs[traced]), strict=True):
            last[row] = trace
        sizes = (numbers(column[calls], -1, "null") for column in (batch.input_bytes, batch.output_bytes))
        for row, took, gave in zip(calls.tolist(), *sizes, strict=True):
            last[row] += f',"input_bytes":{took},"output_bytes":{gave}'
        return last

    def _detail(self, name: str, batch: EventBatch) -> Iterable[str]:
        if name == "record_stacks":
            return self._stacks.of(batch.stack)
        return self._strings.of(np.where(batch.kind == EventKind.MARKER, 0, batch.inputs))


def _stack(tables: Tables, stack_id: int) -> str:
    """The frames of a stack as JSON, null for none."""
    if not stack_id:
        return "null"
    frames = [quoted(tables.strings.get(frame)) for frame in reversed(tables.stacks.frames(stack_id))]
    return f"[{','.join(frames)}]"
