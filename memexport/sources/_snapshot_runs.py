"""Makes rows of long runs of trace entries at once: what the machine does entry by entry, for columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

from memexport.model import Column
from memexport.sources._pickle_window import Window
from memexport.sources._snapshot import NO_TIME, TRACE_COLUMNS, UNKNOWN
from memexport.sources._snapshot_builder import Builder
from memexport.sources._snapshot_collectors import TraceRows
from memexport.sources._snapshot_frames import count_ignored
from memexport.sources._snapshot_lanes import Lanes
from memexport.sources._snapshot_memo import (
    MAX_PAYLOAD,
    OBJECT,
    PAIR,
    PAIR_BITS,
    ROW,
    STACK,
    TAG_BITS,
    TEXT,
    UNSET,
)
from memexport.sources._snapshot_shapes import Part, Shape, learn

_MOST_SHAPES: Final = 16
_LEAST_LANES: Final = 4
"""Fewer take the machine less time."""

_MOST_CUTS: Final = 32
"""In one window. Each costs a look at the whole run, so a file made to be cut everywhere is read slowly."""

_TEXT_COLUMNS: Final = ("compile_context", "user_metadata")
Key = TypeVar("Key", bytes, int)

_NULLS: Final = {"size": UNKNOWN, "time_us": NO_TIME, "device_free": UNKNOWN}


class Runs:
    """Reads runs of entries from the window that a machine reads from.

    Args:
        window: where the machine is.
        builder: where the rows go.
    """

    def __init__(self, window: Window, builder: Builder) -> None:
        self._window = window
        self._builder = builder
        self._shapes: list[Shape] = []
        self._lanes: Lanes | None = None
        self._cuts = 0

    def read(self, trace: TraceRows) -> int | None:
        """Add the entry that begins where the window is, and those after it, as far as they are alike.

        How much was put into the memo; None if not even the first could be read so.
        """
        if not self._builder.memo.is_dense or not trace.can_grow:
            return None
        lanes = self._scanned()
        lane = lanes.find(self._window.at)
        if lane is None and self._learnt(lanes):
            lane = lanes.find(self._window.at)
        if lane is None or self._cuts > _MOST_CUTS:
            return None
        if self._builder.traces.count + len(lanes.starts) > MAX_PAYLOAD:
            return None
        end = lanes.last_after(lane) + 1
        # Anything but the next entry or the end of the batch may do something with the last one.
        if self._window.data[lanes.ends[end - 1] : lanes.ends[end - 1] + 1] not in (b"}", b"e"):
            end -= 1
        if end - lane < _LEAST_LANES:
            return None
        run = _Run(self._builder, lanes, self._shapes, lane, end)
        if run.was_cut:
            self._cuts += 1
        if not run.count:
            return None
        self._window.at = int(lanes.ends[lane + run.count - 1])
        trace.count += run.count
        return run.add()

    def _scanned(self) -> Lanes:
        """The window's lanes. Where little of it is left, it moves on first."""
        window = self._window
        if window.at > len(window.data) // 4 * 3:
            window.refill(0)
        if self._lanes is None or self._lanes.data is not window.data:
            self._lanes = Lanes(window.data)
            self._cuts = 0
            for number, shape in enumerate(self._shapes):
                self._lanes.fit(number, shape)
        return self._lanes

    def _learnt(self, lanes: Lanes) -> bool:
        """Whether the entry here has a shape that was not known."""
        if len(self._shapes) >= _MOST_SHAPES:
            return False
        shape = learn(self._window.data, self._window.at, self._builder.memo)
        if shape is None or shape in self._shapes:
            return False
        self._shapes.append(shape)
        lanes.fit(len(self._shapes) - 1, shape)
        return True


class _Run:
    """The lanes from `begin` to `end`, as columns, up to the first that must be read by the machine.

    Attributes:
        count: how many can be read.
        was_cut: whether that are fewer than there are.
    """

    def __init__(self, builder: Builder, lanes: Lanes, shapes: list[Shape], begin: int, end: int) -> None:
        self._builder = builder
        self._lanes = lanes
        self._part = slice(begin, end)
        numbers = lanes.shapes[self._part]
        self._shapes = [(shapes[n], np.flatnonzero(numbers == n)) for n in np.unique(numbers).tolist()]
        self._columns = {
            name: np.full(end - begin, _NULLS.get(name, 0), dtype) for name, dtype in TRACE_COLUMNS.items()
        }
        self._fits = np.ones(end - begin, bool)
        self._base = len(builder.memo.codes)
        self._offsets = self._memo_offsets(numbers, shapes)
        self._codes = np.zeros(self._offsets[-1], np.uint32)
        self._read()
        self.was_cut = not self._fits.all()
        self.count = int(np.argmin(self._fits)) if self.was_cut else end - begin

    def add(self) -> int:
        """Add the rows; how much was put into the memo."""
        count = self.count
        for shape, rows in self._shapes:
            for key in shape.unknown:
                read = int(np.count_nonzero(rows < count))
                count_ignored(self._builder.ignored, f"key {repr(key)[:60]} of a trace entry", read)
        rows_read = {name: column[:count] for name, column in self._columns.items()}
        self._builder.traces.extend(count, rows_read)
        memoized = int(self._offsets[count])
        self._builder.memo.extend(self._codes[:memoized])
        return memoized

    def _memo_offsets(self, numbers: Column, shapes: list[Shape]) -> Column:
        """How much the entries before each put into the memo; last, how much all do."""
        counts = np.array([len(shape.memoized) for shape in shapes], np.int64)
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts[numbers])))

    def _read(self) -> None:
        """First what the entries hold themselves, then what they refer to: it may be in one before."""
        for shape, rows in self._shapes:
            self._own(shape, rows)
        for shape, rows in self._shapes:
            for name in shape.named(Part.REFERENCE):
                self._referred(name, rows)

    def _values(self, name: str, rows: Column) -> Column:
        return self._lanes.values[name][self._part][rows]

    # What an entry holds.

    def _own(self, shape: Shape, rows: Column) -> None:
        for name in shape.named(Part.NUMBER):
            if name in self._columns:
                self._columns[name][rows] = self._values(name, rows)
        for name in shape.named(Part.STRING):
            self._columns[name][rows] = self._texts(name, rows)
        for name in shape.named(Part.FRAMES):
            frames = self._builder.frames
            self._columns["stack"][rows] = self._looked_up(
                self._slices(name, rows), frames.contents, frames.of_content, rows
            )
        if shape.named(Part.PUT):
            self._fits[rows] &= self._values("put.first", rows) == self._base + self._offsets[rows]
        for number, what in enumerate(shape.memoized):
            self._codes[self._offsets[rows] + number] = self._code(what, rows)

    def _code(self, what: str, rows: Column) -> Column:
        """What the memo holds for a part of these entries."""
        match what:
            case "entry":
                payload, tag = self._builder.traces.count + rows, ROW
            case "frames":
                payload, tag = self._columns["stack"][rows], STACK
            case "pair":
                first, second = self._values("pair.first", rows), self._values("pair.second", rows)
                payload, tag = first << PAIR_BITS | second, PAIR
            case text:
                payload, tag = self._columns[text][rows], TEXT
        return payload.astype(np.uint32) << TAG_BITS | tag

    def _texts(self, name: str, rows: Column) -> Column:
        """The ids of strings; if they are short and all the same, only the first is looked at."""
        words = self._values(f"{name}.word", rows)
        which = rows[:1] if words[0] and (words == words[0]).all() else rows
        builder = self._builder
        return self._looked_up(self._slices(name, which), builder.inline_texts, builder.inline_text, which)

    def _slices(self, name: str, rows: Column) -> list[bytes]:
        data = self._lanes.data
        begins, ends = (self._values(f"{name}.{edge}", rows).tolist() for edge in ("begin", "end"))
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def _looked_up(
        self, keys: list[Key], known: dict[Key, int], find: Callable[[Key], int | None], rows: Column
    ) -> Column:
        """The number of each key; entries with a key for which even `find` knows none do not fit."""
        try:
            return np.fromiter(map(known.__getitem__, keys), np.int64, len(keys))
        except KeyError:
            found = [known[key] if key in known else find(key) for key in keys]
        self._fits[rows] &= np.array([number is not None for number in found])
        return np.array([number or 0 for number in found], np.int64)

    # What it refers to.

    def _referred(self, name: str, rows: Column) -> None:
        codes = self._codes_at(self._values(f"{name}.index", rows).astype(np.int64), rows)
        tags, payloads = codes & ((1 << TAG_BITS) - 1), codes >> TAG_BITS
        if name == "frames":
            self._fits[rows] &= tags == STACK
            self._columns["stack"][rows] = payloads
        elif name in _TEXT_COLUMNS or name == "action":
            find = self._action if name == "action" else self._text
            known = self._builder.known_actions if name == "action" else self._builder.known_texts
            self._columns[name][rows] = self._looked_up(codes.tolist(), known, find, rows)
        else:
            self._fits[rows] &= tags != UNSET

    def _codes_at(self, indexes: Column, rows: Column) -> Column:
        """What the memo holds when the entry begins; `UNSET` for what it will only hold later."""
        codes = self._builder.memo.at(np.minimum(indexes, self._base))
        own = indexes - self._base
        inside = (own >= 0) & (own < self._offsets[rows])
        codes[inside] = self._codes[own[inside]]
        return codes

    def _action(self, code: int) -> int | None:
        """The number of an action that came before. A new one is left to the machine, to keep their order."""
        text = self._string(code)
        number = self._builder.actions.get(text) if text is not None else None
        if number is not None:
            self._builder.known_actions[code] = number
        return number

    def _text(self, code: int) -> int | None:
        text = self._string(code)
        if text is None:
            return None
        number = self._builder.known_texts[code] = self._builder.text(text)
        return number

    def _string(self, code: int) -> str | None:
        memo, tag, payload = self._builder.memo, code & ((1 << TAG_BITS) - 1), code >> TAG_BITS
        if tag == TEXT:
            return self._builder.tables.strings[payload]  # type: ignore[no-any-return]  # of a Sequence
        value = memo.object(payload) if tag == OBJECT else None
        return value if type(value) is str else None
