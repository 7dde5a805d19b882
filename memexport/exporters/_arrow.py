"""Events as Arrow tables: the model's columns, text in place of ids, null for what is not known."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np

from memexport.errors import UsageError
from memexport.model import (
    COLUMNS,
    NULLS,
    Category,
    Column,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 262_144
"""Events of a table that is made at once: some tens of megabytes."""

_COLUMNS: Final = (
    *("kind", "time_unix_ns", "duration_ns", "name", "module", "phase", "category", "device", "step", "rank"),
    *("thread", "size_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "address"),
    *("inputs", "traceparent", "stack", "input_bytes", "output_bytes"),
)
"""Those of a line of JSONL, in its order, then those that only some recordings have."""

_TEXTS: Final = frozenset(
    {"kind", "name", "module", "phase", "category", "device", "thread", "inputs", "traceparent", "stack"}
)


def pyarrow() -> ModuleType:
    """The library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError("Arrow and Parquet need pyarrow", hint="pip install 'memexport[parquet]'") from error
    module: ModuleType = pyarrow
    return module


class ArrowTables:
    """Makes the tables of one recording; each has the same schema, whatever its events have.

    Integers are those of the model, in nanoseconds and bytes. Texts are dictionary-encoded: the enums' names
    in lower case, a device's name ("cuda:0"). `inputs` are an operator's tensor arguments, `traceparent` is
    of a MARKER; `stack` has a line "file:line:function" for each frame, innermost first.

    Args:
        info: with `tables`, what the ids stand for; both may grow.
        without: columns to leave out.
    """

    def __init__(self, info: RecordingInfo, tables: Tables, without: Sequence[str] = ()) -> None:
        arrow, string = pyarrow(), tables.strings.get
        text = arrow.dictionary(arrow.int32(), arrow.string())
        self._names = [name for name in _COLUMNS if name not in without]
        types = [text if name in _TEXTS else arrow.from_numpy_dtype(COLUMNS[name]) for name in self._names]
        self.schema: pa.Schema = arrow.schema(list(zip(self._names, types, strict=True)))
        self._texts: dict[str, Callable[[int], str | None]] = {
            **dict.fromkeys(("name", "module", "thread", "inputs", "traceparent"), string),
            "kind": functools.partial(_enum_name, _names(EventKind)),
            "phase": functools.partial(_enum_name, _names(Phase)),
            "category": functools.partial(_enum_name, _names(Category)),
            "device": lambda number: str(info.devices[number - 1]),
            "stack": functools.lru_cache(maxsize=65_536)(functools.partial(_stack, tables)),
        }

    def table(self, batch: EventBatch) -> pa.Table:
        """The events as one table of one chunk; nothing is done event by event."""
        columns = [self._column(name, batch) for name in self._names]
        return pyarrow().Table.from_arrays(columns, schema=self.schema)

    def _column(self, name: str, batch: EventBatch) -> pa.Array:
        if name in _TEXTS:
            return _dictionary(_text_ids(name, batch), self._texts[name])
        values = getattr(batch, name)
        missing = values == NULLS[name] if name != "time_unix_ns" else np.zeros(len(values), np.bool_)
        return _array(self.schema.field(name).type, missing, values)


def pieces(batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """The same events in batches of about `ROWS`, the last one fewer."""
    waiting: list[EventBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= ROWS:
            yield EventBatch.concat(waiting)
            waiting = []
    if waiting:
        yield EventBatch.concat(waiting)


def metadata(info: RecordingInfo, end: RecordingEnd) -> dict[str, str]:
    """What is true for the whole recording, as JSON under the keys "memexport.info" and "memexport.end"."""
    fields = asdict(info)
    # What a later version wrote into an archive, as protobuf: of no use elsewhere.
    del fields["unknown_fields"]
    return {"memexport.info": json.dumps(fields), "memexport.end": json.dumps(asdict(end))}


def _text_ids(name: str, batch: EventBatch) -> Column:
    """Ids of which 0 is null."""
    if name == "device":
        return np.maximum(batch.device, -1) + 1
    if name in ("inputs", "traceparent"):
        is_trace = batch.kind == EventKind.MARKER
        return np.where(is_trace == (name == "traceparent"), batch.inputs, 0)
    column: Column = getattr(batch, name)
    return column


def _dictionary(ids: Column, text_of: Callable[[int], str | None]) -> pa.Array:
    """The text of each id, with a dictionary of those that occur."""
    arrow = pyarrow()
    occurs = np.zeros(int(ids.max(initial=0)) + 1, np.bool_)
    occurs[ids] = True
    occurs[0] = False
    used = np.flatnonzero(occurs)
    place = np.zeros(len(occurs), np.int32)
    place[used] = np.arange(len(used))
    indices = _array(arrow.int32(), ids == 0, place[ids])
    return arrow.DictionaryArray.from_arrays(indices, _strings([text_of(key) for key in used.tolist()]))


def _strings(texts: Sequence[str | None]) -> pa.Array:
    # Half of a surrogate pair, which a name from a file can have and UTF-8 cannot, becomes its escape.
    encoded = [(text or "").encode("utf-8", "backslashreplace") for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    missing = np.array([text is None for text in texts], np.bool_)
    return _array(pyarrow().string(), missing, offsets, b"".join(encoded))


def _array(type_: pa.DataType, missing: Column, *buffers: Column | bytes) -> pa.Array:
    """The buffers as Arrow lays them out, without a copy.

    `pyarrow.array` would do; but it imports pandas, which a program under a tracker may not want.
    """
    arrow = pyarrow()
    valid = arrow.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    parts = [arrow.py_buffer(b if isinstance(b, bytes) else np.ascontiguousarray(b)) for b in buffers]
    return arrow.Array.from_buffers(type_, len(missing), [valid, *parts])


def _names(values: type[enum.IntEnum]) -> Mapping[int, str]:
    return {value: value.name.lower() for value in values}


def _enum_name(names: Mapping[int, str], value: int) -> str | None:
    """None for one that only a later version of the model has."""
    return names.get(value)


def _stack(tables: Tables, stack_id: int) -> str:
    frames = reversed(tables.stacks.frames(stack_id))
    return "\n".join(tables.strings[frame] for frame in frames)
