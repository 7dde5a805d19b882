"""Frames and stacks of a snapshot, interned."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from memexport.model import Tables
from memexport.sources._snapshot_memo import FRAME, STACK, Memo, Settled
from memexport.sources._snapshot_values import Items, Meter, Misfit, Record, named, now, shown

MAX_DEPTH: Final = 10_000
_MOST_NODES: Final = 8_000_000
_MOST_KNOWN_BYTES: Final = 2**23

KNOWN_FRAMES: Final = re.compile(rb"((?:h.|j.{4}){1,999}+)(e)(?=[^(])", re.DOTALL)
"""Operations that get objects from the memo, and APPENDS. A pickler puts a thousand at a time into a list:
a list with so many, or with a MARK after them, may go on."""

ONLY_FRAMES: Final = re.compile(rb"(?:\(((?:h.|j.{4})++)e|(h.|j.{4})a)?", re.DOTALL)
"""The same for a whole list of frames, from behind EMPTY_LIST."""

_REFERENCE: Final = re.compile(rb"h(.)|j(.{4})", re.DOTALL)

# The last four are what `torch.cuda.memory._dump_snapshot(augment_with_fx_traces=True)` adds.
_KEYS: Final = {
    *("filename", "line", "name"),
    *("fx_node_op", "fx_node_name", "fx_original_trace", "fx_node_info"),
}


class Frames:
    """Makes ids in the tables from the lists of frames in a snapshot, which have the innermost first.

    Args:
        tables: what the ids are in.
        memo: where a frame or list that was used is replaced by its id.
        meter: counts the texts.
        ignored: where keys that are not understood are counted.
        file_bytes: a file may not make many more stacks than it has bytes.

    Attributes:
        contents: what `of_content` has found; may be emptied at any time.
    """

    def __init__(
        self, tables: Tables, memo: Memo, meter: Meter, ignored: Counter[str], file_bytes: int
    ) -> None:
        self._tables = tables
        self._memo = memo
        self._meter = meter
        self._ignored = ignored
        self._known: dict[bytes, int] = {}
        self.contents: dict[bytes, int] = {}
        self._known_bytes = 0
        self._most_nodes = len(tables.stacks) + min(100_000 + file_bytes // 16, _MOST_NODES)

    def stack(self, frames: Any) -> int:
        """The id of the stack of these frames; 0 for none.

        Raises:
            Misfit: they are not a list of frames.
        """
        frames = now(frames)
        if frames is None:
            return 0
        if type(frames) is Settled and frames.tag == STACK:
            return frames.payload
        if type(frames) is not Items and type(frames) is not tuple:
            raise Misfit(f"frames is {shown(frames)}, not a list")
        stack = self.intern([self._frame(frame) for frame in frames])
        if type(frames) is Items:
            self.settle(frames, STACK, stack)
        return stack

    def intern(self, frames: Sequence[int]) -> int:
        """The id of the stack of these frames' ids, innermost first."""
        if len(frames) > MAX_DEPTH:
            raise Misfit(f"a stack of {len(frames)} frames")
        if len(self._tables.stacks) + len(frames) > self._most_nodes:
            self._ignored[f"a stack beyond the first {self._most_nodes} calls"] += 1
            return 0
        return self._tables.stacks.intern(reversed(frames))

    def of_references(self, references: bytes) -> int | None:
        """The id of the stack of frames in the memo, given as the operations that get them.

        None if any is not a frame. The same bytes mean the same stack: no index of the memo is set twice.
        """
        stack = self._known.get(references)
        if stack is None:
            indexes = [
                short[0] if short else int.from_bytes(long, "little")
                for short, long in _REFERENCE.findall(references)
            ]
            found = [self._memo.get(index) for index in indexes]
            if any(tag != FRAME for tag, _ in found):
                return None
            stack = self.intern([payload for _, payload in found])
            self._remember(self._known, references, stack)
        return stack

    def of_content(self, content: bytes) -> int | None:
        """The same for all that puts frames into an empty list; None also for anything else."""
        stack = self.contents.get(content)
        if stack is None:
            found = ONLY_FRAMES.fullmatch(content)
            if found is None:
                return None
            stack = self.of_references(found[1] or found[2]) if content else 0
            if stack is not None:
                self._remember(self.contents, content, stack)
        return stack

    def _remember(self, known: dict[bytes, int], operations: bytes, stack: int) -> None:
        self._known_bytes += len(operations) + 150
        if self._known_bytes > _MOST_KNOWN_BYTES:
            self._known.clear()
            self.contents.clear()
            self._known_bytes = 0
        known[operations] = stack

    def settle(self, value: Record | Items, tag: int, payload: int) -> None:
        """The value was used: keep only what it has become."""
        self._meter.released(value)
        value.settled = Settled(tag, payload)
        value.clear()
        if value.memo >= 0:
            self._memo.settle(value.memo, tag, payload)

    def _frame(self, frame: Any) -> int:
        frame = now(frame)
        if type(frame) is Settled and frame.tag == FRAME:
            return frame.payload
        if type(frame) is not Record:
            raise Misfit(f"a frame is {shown(frame)}, not a dict")
        text = self._text(frame)
        self._meter.charge(2 * len(text) + 100)
        interned = self._tables.strings.intern(text)
        self.settle(frame, FRAME, interned)
        return interned

    def _text(self, frame: Record) -> str:
        filename, line, name = frame.get("filename", "??"), frame.get("line", 0), frame.get("name", "??")
        if type(filename) is not str or type(name) is not str or type(line) is not int:
            raise Misfit(
                f"a frame has a filename, line and name of types "
                f"{named(filename)}, {named(line)} and {named(name)}"
            )
        count_unknown(frame, _KEYS, "a frame", self._ignored)
        return f"{filename}:{line}:{name}"


def count_unknown(record: Record, known: set[str], of: str, ignored: Counter[str]) -> None:
    """Count the keys of the record that are not known."""
    if not record.keys() <= known:
        for key in record.keys() - known:
            count_ignored(ignored, f"key {repr(key)[:60]} of {of}")


def count_ignored(ignored: Counter[str], what: str, count: int = 1) -> None:
    """Count what is not understood; of a thousand different ones, the rest together."""
    if what not in ignored and len(ignored) >= 1_000:
        what = "something else"
    ignored[what] += count
