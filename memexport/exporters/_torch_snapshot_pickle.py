"""A torch snapshot's parts as the operations of its pickle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.frames import parse_frame
from memexport.exporters import _pickle_opcodes as ops
from memexport.exporters._pickle_opcodes import Pickling, Value
from memexport.exporters._torch_snapshot_end import ALLOCATED, PENDING, Segment
from memexport.exporters._torch_snapshot_rows import ACTIONS, ALLOC, OOM, USER_DEFINED, Rows
from memexport.model import Clock, Tables

_SMALL_SEGMENT_BYTES: Final = 2 << 20
_LARGEST_LONG: Final = np.uint64(2**63 - 1)

Context = tuple[int, int, int]
"""The ids of a stack, a module and a name."""


class Encoder:
    """Encodes what a snapshot holds. Stacks, frames and strings are written where they are first needed."""

    def __init__(self, tables: Tables, clock: Clock, *, of_snapshot: bool) -> None:
        self._tables = tables
        self._has_times = clock == "unix"
        self._of_snapshot = of_snapshot
        self._pickling = Pickling()

    def value(self, value: Value) -> bytes:
        """A value that needs no frames."""
        return self._pickling.value(value)

    def trace(self, rows: Iterable[Rows]) -> Iterator[bytes]:
        """A device's list of entries."""
        yield ops.EMPTY_LIST
        for some in rows:
            for begin in range(0, len(some), ops.APPENDED_AT_ONCE):
                entries = self._entries(some[begin : begin + ops.APPENDED_AT_ONCE])
                yield b"".join((ops.MARK, *entries, ops.APPENDS))

    def segment(self, segment: Segment, device: int) -> bytes:
        """An entry of `segments`."""
        active = segment.sum_of(ALLOCATED, PENDING)
        known: dict[str, Value] = {
            "device": device,
            "address": segment.address,
            "total_size": segment.total_size,
            "allocated_size": segment.sum_of(ALLOCATED),
            "active_size": active,
            "requested_size": active,
            "stream": segment.stream,
            "segment_type": "small" if segment.total_size <= _SMALL_SEGMENT_BYTES else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
        }
        parts = [self.value(key) + self.value(value) for key, value in known.items()]
        parts += (self.value("frames"), self._frames((segment.stack, 0, 0)), self.value("blocks"))
        return self._dict([*parts, *self._blocks(segment)])

    def _blocks(self, segment: Segment) -> Iterator[bytes]:
        blocks = []
        for block in segment.blocks:
            known: dict[str, Value] = {
                "address": block.address,
                "size": block.size,
                "requested_size": block.size,
                "state": block.state,
            }
            parts = [self.value(key) + self.value(value) for key, value in known.items()]
            context = (block.context[0], 0, 0) if self._of_snapshot else block.context
            blocks.append(self._dict([*parts, self.value("frames"), self._frames(context)]))
        return ops.listed(blocks)

    def _entries(self, rows: Rows) -> Iterator[bytes]:
        """Rows that bring nothing new are filled into a template; the others are written one by one."""
        contexts: list[Context] = list(
            zip(rows["stack"].tolist(), rows["module"].tolist(), rows["name"].tolist(), strict=True)
        )
        if self._of_snapshot:
            contexts = [(stack, 0, 0) for stack, _, _ in contexts]
        frames = np.array([self._pickling.place(context) for context in contexts], np.int64)
        special = np.flatnonzero(self._is_special(rows, frames)).tolist()
        alike = self._alike(rows, frames) if len(special) < len(rows) else np.empty((len(rows), 0), np.uint8)
        begin = 0
        for place in special:
            yield alike[begin:place].tobytes()
            yield self._entry(rows[place], contexts[place])
            begin = place + 1
        yield alike[begin:].tobytes()

    def _is_special(self, rows: Rows, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        if any(self._pickling.known(word) is None for word in self._keys()):
            return np.ones(len(rows), np.bool_)
        unknown = np.array([self._pickling.known(action) is None for action in ACTIONS])
        special: npt.NDArray[np.bool_] = (frames < 0) | unknown[rows["action"]] | (rows["action"] >= OOM)
        special |= (rows["address"] > _LARGEST_LONG) | (rows["stream"] > _LARGEST_LONG)
        return special | (rows["name"] != 0) if self._of_snapshot else special

    def _keys(self) -> list[str]:
        times = ["time_us"] if self._has_times else []
        return ["action", "addr", "size", "stream", *times, "frames"]

    def _alike(self, rows: Rows, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Each row as an entry, in a matrix; what is written of special rows means nothing."""
        places = np.array([max(0, self._pickling.place(action)) for action in ACTIONS], "<u4")
        columns: dict[str, tuple[bytes, npt.NDArray[Any]]] = {
            "action": (ops.LONG_BINGET, places[rows["action"]]),
            "addr": (ops.LONG_OF_8, rows["address"]),
            "size": (ops.LONG_OF_8, rows["size"]),
            "stream": (ops.LONG_OF_8, rows["stream"]),
            "time_us": (ops.LONG_OF_8, rows["time_us"]),
            "frames": (ops.LONG_BINGET, np.maximum(frames, 0).astype("<u4")),
        }
        template, fields = bytearray(ops.EMPTY_DICT + ops.MARK), {}
        for key in self._keys():
            operation, values = columns[key]
            template += (self._pickling.known(key) or b"") + operation
            little_endian = values.dtype.newbyteorder("<")
            fields[key] = (little_endian, len(template))
            template += bytes(values.dtype.itemsize)
        template += ops.SETITEMS
        matrix = np.empty((len(rows), len(template)), np.uint8)
        matrix[:] = np.frombuffer(template, np.uint8)
        filled = matrix.view(np.dtype({
            "names": list(fields),
            "formats": [dtype for dtype, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": len(template),
        }))[:, 0]  # fmt: skip
        for key in fields:
            filled[key] = columns[key][1]
        return matrix

    def _entry(self, row: Any, context: Context) -> bytes:
        """One row, whatever it has."""
        action, address, size, stream, time_us, _, _, name = row.item()
        known: dict[str, Value] = {"action": ACTIONS[action]}
        known |= {"device_free" if action == OOM else "addr": address, "size": size, "stream": stream}
        if self._has_times:
            known["time_us"] = time_us
        if name and (action == USER_DEFINED or (self._of_snapshot and action == ALLOC)):
            known["user_metadata"] = self._tables.strings[name]
        parts = [self.value(key) + self.value(value) for key, value in known.items()]
        return self._dict([*parts, self.value("frames"), self._frames(context)])

    def _frames(self, context: Context) -> bytes:
        """The frames of a stack, innermost first; before them the operator and its module, if known."""
        known = self._pickling.known(context)
        if known is not None:
            return known
        stack, module, name = context
        strings = self._tables.strings
        frames = []
        if module or name:
            operator, path = strings.get(name), strings.get(module)
            leaf: dict[str, Value] = {
                "name": operator or path or "",
                "filename": (path if operator else None) or "",
                "line": 0,
            }
            frames.append(self.value(leaf))
        frames += [self._frame(string_id) for string_id in reversed(self._tables.stacks.frames(stack))]
        return self._pickling.remember(context, b"".join(ops.listed(frames)))

    def _frame(self, string_id: int) -> bytes:
        key = ("frame", string_id)
        known = self._pickling.known(key)
        if known is not None:
            return known
        frame = parse_frame(self._tables.strings[string_id])
        fields: dict[str, Value] = {"name": frame.function, "filename": frame.file, "line": frame.line}
        return self._pickling.remember(key, self.value(fields))

    @staticmethod
    def _dict(parts: Sequence[bytes]) -> bytes:
        return b"".join((ops.EMPTY_DICT, ops.MARK, *parts, ops.SETITEMS))
