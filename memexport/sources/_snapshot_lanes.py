"""Reads all trace entries of a window at once, a column operation for each part of an entry.

Every place where an entry might begin is a lane. In all lanes whose bytes fit a shape, the same part is read
at the same time, each lane at its own place. Whether a lane really is an entry is known only once the machine
comes to it: it is, if the entry before it ends there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from memexport.model import Column
from memexport.sources._snapshot_builder import TIME_LIMIT_US
from memexport.sources._snapshot_shapes import Part, Shape

_PADDING: Final = bytes(8_192)
"""More than the longest entry, so that a lane that begins near the end need not be checked at each part."""

NO_SHAPE: Final = 255
_BATCH: Final = b"e("
"""APPENDS and MARK, which a pickler puts between two entries now and then."""

# By code: how long the number is (9: it is none, or says its length), and which bit is its sign.
_NUMBER_BYTES: Final = np.full(256, 9, np.int64)
_NUMBER_BYTES[[ord("K"), ord("M"), ord("J")]] = 1, 2, 4
_LONG1: Final = 0x8A
_IS_SIGNED: Final = np.zeros(256, bool)
_IS_SIGNED[[ord("J"), _LONG1]] = True
_MASKS: Final = np.array([(1 << 8 * length) - 1 for length in range(9)] + [0], np.uint64)
_SIGNS: Final = np.array([0] + [1 << 8 * length - 1 for length in range(1, 9)] + [0], np.uint64)

_REFERENCE_BYTES: Final = np.zeros(256, np.int64)
_REFERENCE_BYTES[[ord("h"), ord("j")]] = 1, 4


class Lanes:
    """The lanes of a window.

    Attributes:
        data: the window's bytes.
        starts: where each begins.
        ends: where it ends; −1 for one that fits no shape.
        shapes: the number of its shape, `NO_SHAPE` for none.
        values: by name, what was read in all lanes; strings as places where they begin and end.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        padded = data + _PADDING
        self._bytes = np.frombuffer(padded, np.uint8)
        # The eight bytes from every place on, as a number.
        self._words = np.ndarray((len(padded) - 8,), "<u8", buffer=padded, strides=(1,))
        self.starts = self._dicts(np.flatnonzero(self._bytes[: len(data)] == ord("}")))
        count = len(self.starts)
        self.ends = np.full(count, -1)
        self.shapes = np.full(count, NO_SHAPE, np.uint8)
        self.values: dict[str, Column] = {}
        self._breaks: Column | None = None

    def _dicts(self, places: Column) -> Column:
        """Those of the places where it looks as if a dict begins whose items are set all at once."""
        words = self._words[places]
        memoized, put = words >> 8 & 0xFF == 0x94, words >> 8 & 0xFF == ord("r")
        mark = np.where(memoized, words >> 16, np.where(put, words >> 48, words >> 8)) & 0xFF
        dicts: Column = places[mark == ord("(")]
        return dicts

    def fit(self, number: int, shape: Shape) -> None:
        """Read the lanes that fit the shape and fitted none before."""
        reading = _Reading(self, np.flatnonzero(self.ends < 0))
        for part, literal, name in shape.parts:
            reading.read(part, literal, name)
        reading.keep_plausible()
        if len(reading.lanes):
            self.ends[reading.lanes] = reading.at
            self.shapes[reading.lanes] = number
            for name, values in reading.values.items():
                column = self.values.setdefault(name, np.zeros(len(self.starts), values.dtype))
                column[reading.lanes] = values
        self._breaks = None

    def find(self, place: int) -> int | None:
        """The lane that begins here, if it fits a shape."""
        lane = int(np.searchsorted(self.starts, place))
        if lane < len(self.starts) and self.starts[lane] == place and self.ends[lane] >= 0:
            return lane
        return None

    def last_after(self, lane: int) -> int:
        """The last of the lanes that follow one another from this one on."""
        if self._breaks is None:
            self._breaks = np.append(np.flatnonzero(~self._follows()), len(self.starts) - 1)
        return int(self._breaks[np.searchsorted(self._breaks, lane)])

    def _follows(self) -> Column:
        """Whether the next lane begins where each ends, a batch's boundary aside."""
        ends, starts = self.ends[:-1], self.starts[1:]
        gaps = self._words[np.maximum(ends, 0)] & _MASKS[len(_BATCH)]
        is_next = (ends == starts) | ((ends + 2 == starts) & (gaps == int.from_bytes(_BATCH, "little")))
        follows: Column = is_next & (ends >= 0) & (self.ends[1:] >= 0)
        return follows

    def words(self, at: Column) -> Column:
        """The eight bytes from each place on, as a number."""
        return self._words[at]

    def ends_before(self, until: bytes, begins: Column, lanes: Column) -> Column:
        """Where the last of these bytes but the first come, before the next lane; −1 for nowhere."""
        find, limits = self.data.find, np.append(self.starts, len(self.data))[lanes + 1]
        places = zip(begins.tolist(), limits.tolist(), strict=True)
        found = np.fromiter((find(until, begin, limit) for begin, limit in places), np.int64, len(lanes))
        return np.where(found < 0, -1, found + 1)

    def next_tail(self, lanes: Column) -> Column:
        """The last byte of each lane's entry if the next lane is the next entry; −1 if it cannot be."""
        following = np.append(self.starts, -1)[lanes + 1]
        is_batch = (self._bytes[following - 1] == ord("(")) & (self._bytes[following - 2] == ord("e"))
        tail = np.where(is_batch, following - 2, following)
        return np.where((following >= 3) & (self._bytes[tail - 1] == ord("u")), tail - 1, -1)


class _Reading:
    """The lanes that fit a shape so far.

    Attributes:
        lanes: their numbers.
        at: where each has been read to.
        values: what was read.
    """

    def __init__(self, window: Lanes, lanes: Column) -> None:
        self._window = window
        self.lanes = lanes
        self.at = window.starts[lanes]
        self.values: dict[str, Column] = {}

    def read(self, part: Part, literal: bytes, name: str) -> None:
        match part:
            case Part.LITERAL:
                self._literal(literal)
            case Part.NUMBER:
                self._number(name)
            case Part.REFERENCE:
                self._reference(name)
            case Part.STRING:
                self._string(name)
            case Part.PUT:
                self._put(name)
            case Part.FRAMES:
                self._frames(literal, name)

    def _keep(self, fits: Column) -> None:
        """Let go of the other lanes."""
        if not fits.all():
            self.lanes, self.at = self.lanes[fits], self.at[fits]
            self.values = {name: values[fits] for name, values in self.values.items()}

    def _literal(self, literal: bytes) -> None:
        for begin in range(0, len(literal), 8):
            piece = literal[begin : begin + 8]
            found = self._window.words(self.at) & _MASKS[len(piece)]
            self._keep(found == int.from_bytes(piece, "little"))
            self.at = self.at + len(piece)

    def _number(self, name: str) -> None:
        words = self._window.words(self.at)
        codes = words & 0xFF
        is_long = codes == _LONG1
        lengths = np.where(is_long, (words >> 8 & 0xFF).astype(np.int64), _NUMBER_BYTES[codes])
        begins = self.at + 1 + is_long
        self.at = begins + lengths
        lengths = np.minimum(lengths, 9)
        values = self._window.words(begins) & _MASKS[lengths]
        if name:
            self.values[name] = values
        self._keep((lengths < 9) & ~(_IS_SIGNED[codes] & (values & _SIGNS[lengths] != 0)))

    def _reference(self, name: str) -> None:
        words = self._window.words(self.at)
        lengths = _REFERENCE_BYTES[words & 0xFF]
        self.values[f"{name}.index"] = words >> 8 & _MASKS[lengths]
        self.at = self.at + 1 + lengths
        self._keep(lengths > 0)

    def _string(self, name: str) -> None:
        words = self._window.words(self.at)
        begins, lengths = self.at + 2, (words >> 8 & 0xFF).astype(np.int64)
        self.at = begins + lengths
        self.values[f"{name}.begin"], self.values[f"{name}.end"] = begins, self.at
        # The operation itself where that is not longer than a word, so that equal ones are seen at once.
        self.values[f"{name}.word"] = words & _MASKS[np.where(lengths <= 6, 2 + lengths, 9)]
        self._keep(words & 0xFF == 0x8C)

    def _put(self, name: str) -> None:
        """An index in the memo: one more than that before it in the entry."""
        indexes = self._window.words(self.at) & _MASKS[4]
        first = self.values.get(f"{name}.first")
        previous = self.values.get(f"{name}.last")
        self.values[f"{name}.first"] = indexes if first is None else first
        self.values[f"{name}.last"] = indexes
        self.at = self.at + 4
        if previous is not None:
            self._keep(indexes == previous + 1)

    def _frames(self, until: bytes, name: str) -> None:
        begins = self.at
        if until:
            ends = self._window.ends_before(until, begins, self.lanes)
        else:
            ends = self._window.next_tail(self.lanes)
        self.values[f"{name}.begin"], self.values[f"{name}.end"] = begins, ends
        self.at = ends
        self._keep(ends >= begins)

    def keep_plausible(self) -> None:
        """Let go of lanes whose numbers a snapshot cannot have: the machine will say what is wrong."""
        times = self.values.get("time_us")
        if times is not None:
            self._keep(times < TIME_LIMIT_US)
        pairs = [self.values[name] for name in ("pair.first", "pair.second") if name in self.values]
        for pair in pairs:
            self._keep(pair < 2**14)
