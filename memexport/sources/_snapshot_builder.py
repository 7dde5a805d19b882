"""Makes the columns of a snapshot from the dicts of its pickle, one by one."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Final

from memexport.errors import InputError
from memexport.model import Tables
from memexport.sources._pickle_machine import Refusal
from memexport.sources._snapshot import (
    BLOCK_COLUMNS,
    NO_TIME,
    SEGMENT_COLUMNS,
    TRACE_COLUMNS,
    UNKNOWN,
)
from memexport.sources._snapshot_columns import Rows
from memexport.sources._snapshot_frames import Frames, count_unknown
from memexport.sources._snapshot_memo import MAX_PAYLOAD, ROW, SPENT, TEXT, Memo, Settled
from memexport.sources._snapshot_values import Items, Meter, Misfit, Record, as_text, now, shown

MAX_DEVICES: Final = 1_024
MAX_ACTIONS: Final = 255
TIME_LIMIT_US: Final = 2**63 // 1_000
SIZE_LIMIT: Final = 2**63
ADDRESS_LIMIT: Final = 2**64

# What has no column: `pool_id` repeats that of the segment.
ENTRY_KEYS: Final = {
    *("action", "addr", "size", "stream", "time_us", "frames", "device_free"),
    *("compile_context", "user_metadata", "pool_id"),
}
_SEGMENT_KEYS: Final = {
    *("device", "address", "total_size", "stream", "segment_type", "segment_pool_id", "is_expandable"),
    *("frames", "blocks", "allocated_size", "active_size", "requested_size"),
}
_BLOCK_KEYS: Final = {"address", "size", "requested_size", "state", "frames", "history"}
_NOT_A_SNAPSHOT: Final = "this is not what torch.cuda.memory._dump_snapshot writes"


class Builder:
    """The columns so far, and what makes a row of a dict.

    Args:
        path: the file, for errors.
        tables: where strings and stacks are interned.
        file_bytes: how long the file is: it bounds what may come of it.

    Attributes:
        path: as given.
        traces, segments, blocks: the rows; traces of all devices.
        actions: the number of each action.
        known_actions, known_texts: the same, and ids of texts, by what the memo holds of them.
        inline_texts: ids of texts, by their bytes.
    """

    def __init__(self, path: str | os.PathLike[str], tables: Tables, file_bytes: int) -> None:
        self.path = path
        self.tables = tables
        self.ignored: Counter[str] = Counter()
        self.memo = Memo()
        self.meter = Meter(file_bytes)
        self.frames = Frames(tables, self.memo, self.meter, self.ignored, file_bytes)
        self.traces = Rows(TRACE_COLUMNS)
        self.segments = Rows(SEGMENT_COLUMNS)
        self.blocks = Rows(BLOCK_COLUMNS)
        self.actions: dict[str, int] = {}
        self.known_actions: dict[int, int] = {}
        self.known_texts: dict[int, int] = {}
        self.inline_texts: dict[bytes, int] = {}
        self._repeats_left = 10_000 + file_bytes // 32

    def wrong(self, where: str | None, what: str) -> InputError:
        """The error that says so."""
        return InputError(self.path, where, f"{what}; {_NOT_A_SNAPSHOT}")

    def repeat(self, count: int) -> None:
        """So many rows come from objects that were used before. Recordings hardly have any such."""
        self._repeats_left -= count
        if self._repeats_left < 0:
            raise Refusal("refers to the same entries again and again")

    # Trace entries.

    def entry(self, entry: Any) -> None:
        """Add the row of a trace entry."""
        entry = now(entry)
        if type(entry) is Settled and entry.tag == ROW:
            self.repeat(1)
            self.traces.append(*self.traces.row(entry.payload))
        elif type(entry) is Record:
            self._new_entry(entry)
        else:
            raise Misfit(f"is {shown(entry)}, not a dict")

    def _new_entry(self, entry: Record) -> None:
        if self.traces.count >= MAX_PAYLOAD:
            raise Misfit("is one entry too many")
        count_unknown(entry, ENTRY_KEYS, "a trace entry", self.ignored)
        self.traces.append(
            self.action(entry.get("action")),
            whole(entry, "addr", ADDRESS_LIMIT, 0),
            whole(entry, "size", SIZE_LIMIT, UNKNOWN),
            _stream(entry),
            whole(entry, "time_us", TIME_LIMIT_US, NO_TIME),
            self.frames.stack(entry.get("frames")),
            whole(entry, "device_free", SIZE_LIMIT, UNKNOWN),
            self.text(entry.get("compile_context")),
            self.text(entry.get("user_metadata")),
        )
        self.frames.settle(entry, ROW, self.traces.count - 1)

    def action(self, action: Any) -> int:
        """The number of an action."""
        if type(action) is not str:
            raise Misfit("has no action")
        number = self.actions.setdefault(action, len(self.actions))
        if number >= MAX_ACTIONS:
            raise Misfit(f"has one more action than the {MAX_ACTIONS} that are allowed")
        return number

    def text(self, value: Any) -> int:
        """The id of a text, or of anything else as JSON; 0 for none and for an empty one."""
        if value is None or value == "":
            return 0
        text = as_text(value)
        interned = self.tables.strings.intern(text)
        if type(value) is Record or type(value) is Items:
            self.meter.charge(2 * len(text))
            self.frames.settle(value, TEXT, interned)
        return interned

    def inline_text(self, data: bytes) -> int | None:
        """The same for a string given as its bytes; None if they are not UTF-8."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        self.meter.charge(2 * len(data) + 200)
        interned = self.inline_texts[data] = self.text(text)
        return interned

    # Segments and blocks.

    def block(self, block: Any, offset: int) -> tuple[int, bool]:
        """Add the row of a block of the segment that comes next; its size, and whether it has an address.

        Without one, the row holds the block's offset in the segment.
        """
        block = now(block)
        if type(block) is not Record:
            raise Misfit(f"is {shown(block)}, not a dict")
        count_unknown(block, _BLOCK_KEYS, "a block", self.ignored)
        size = whole(block, "size", SIZE_LIMIT, None)
        if offset + size >= ADDRESS_LIMIT:
            raise Misfit("has no place in the address space")
        last = _last_allocation(block)
        self.blocks.append(
            self.segments.count,
            whole(block, "address", ADDRESS_LIMIT, offset),
            size,
            whole(block, "requested_size", SIZE_LIMIT, whole(last, "real_size", SIZE_LIMIT, UNKNOWN)),
            self._word(block, "state"),
            self.frames.stack(block.get("frames", last.get("frames"))),
        )
        has_address = "address" in block
        self.frames.settle(block, SPENT, 0)
        return size, has_address

    def segment(self, segment: Record) -> None:
        """Add the row of a segment whose blocks were added before."""
        count_unknown(segment, _SEGMENT_KEYS, "a segment", self.ignored)
        self.segments.append(
            whole(segment, "device", MAX_DEVICES, 0),
            whole(segment, "address", ADDRESS_LIMIT, None),
            whole(segment, "total_size", SIZE_LIMIT, None),
            _stream(segment),
            self.text(segment.get("segment_type")),
            _pool(segment.get("segment_pool_id", (0, 0))),
            int(bool(segment.get("is_expandable"))),
            self.frames.stack(segment.get("frames")),
        )
        self.frames.settle(segment, SPENT, 0)

    def _word(self, record: Record, key: str) -> int:
        value = record.get(key)
        if type(value) is not str:
            raise Misfit(f"{key} is {shown(value)}, not a word")
        return self.tables.strings.intern(value)


def whole(record: Record, key: str, limit: int, default: int | None) -> int:
    """A number from 0 up to the limit; the default if there is none."""
    value = record.get(key)
    if type(value) is int and 0 <= value < limit:
        return value
    if value is not None:
        raise Misfit(f"{key} is {shown(value)}")
    if default is None:
        raise Misfit(f"has no {key}")
    return default


def _stream(record: Record) -> int:
    """A handle: torch writes the pointer as a signed number."""
    value = record.get("stream", 0)
    if type(value) is not int or not -(2**63) <= value < ADDRESS_LIMIT:
        raise Misfit(f"stream is {shown(value)}")
    return value % ADDRESS_LIMIT


def _pool(pool: Any) -> int:
    match now(pool):
        case (int(first), int(second)) if 0 <= first < 2**32 and 0 <= second < 2**32:
            return first << 32 | second
    raise Misfit(f"segment_pool_id is {shown(pool)}, not two small numbers")


def _last_allocation(block: Record) -> Record:
    """Of a block in a file older than torch 2.1. Its history has the latest first."""
    history = now(block.get("history"))
    if type(history) is Items and history:
        if type(history[0]) is not Record:
            raise Misfit(f"history[0] is {shown(history[0])}, not a dict")
        return history[0]
    return _NOTHING


_NOTHING: Final = Record()
