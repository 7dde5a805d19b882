"""Puts the allocator's own record in the place of what was seen of storages from outside.

Rows go in as the capture logged them, and come out as if it had seen every allocation: the same kinds, so
that whatever follows (categories, counters, steps, spans) works as for the default capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from memexport.model import Category
from memexport.tracker import rows
from memexport.tracker.chunk import Ints
from memexport.tracker.compiled import UNSEEN
from memexport.tracker.exact_blocks import Blocks
from memexport.tracker.exact_device import DeviceJoin
from memexport.tracker.exact_window import Mask, Raw, Window, kind_of
from memexport.tracker.held import HeldRows, Ready
from memexport.tracker.rows import DEVICE_UNIT, LABEL_UNIT, Labels


class JoinedRows:
    """Held rows, joined with the record first; see `HeldRows`.

    Args:
        held: takes the joined rows.
        labels: what the rows' codes and contexts stand for.
        next_number: numbers blocks; shared with what numbers storages.
    """

    def __init__(self, held: HeldRows, labels: Labels, next_number: Callable[[], int]) -> None:
        self._held = held
        self._join = AllocatorJoin(labels, next_number)

    def add(self, chunk: bytes) -> Iterator[Ready]:
        """Take the next whole rows; those that are ready."""
        joined = self._join.add(chunk)
        if joined:
            yield from self._held.add(joined)

    def rest(self) -> Iterator[Ready]:
        """What still waits, except for the record."""
        yield from self._held.rest()


class AllocatorJoin:
    """Joins window by window: up to where the record was drained, it and the rows are both complete.

    Args:
        labels: what the rows' codes and contexts stand for.
        next_number: numbers blocks; shared with what numbers storages.
    """

    def __init__(self, labels: Labels, next_number: Callable[[], int]) -> None:
        self._labels = labels
        self._blocks = Blocks(next_number)
        self._device = DeviceJoin(labels, next_number)
        self._waiting = bytearray()
        self._context = 0
        self._allocation_codes: dict[int, int] = {}

    def add(self, chunk: bytes) -> bytes:
        """Take the next whole rows; the joined ones of every window that they complete."""
        self._waiting += chunk
        raw = np.frombuffer(bytes(self._waiting), rows.ROW_DTYPE)
        ends = np.flatnonzero((kind_of(raw) == rows.MEMORY) & (raw["first"] == 0))
        if not len(ends):
            return b""
        stop = int(ends[-1]) + 1
        del self._waiting[: stop * rows.ROW.size]
        return self._join(raw[:stop])

    def _join(self, raw: Raw) -> bytes:
        is_memory = kind_of(raw) == rows.MEMORY
        on_device = is_memory & (raw["code"] % LABEL_UNIT >= DEVICE_UNIT)
        events = raw[is_memory & ~on_device & (raw["first"] != 0)]
        window = Window.of(raw[~is_memory].copy())
        in_operator = self._place(window, events)
        dropped = self._pair(window, events, in_operator)
        made = self._made(int(raw["time"][is_memory].max()))
        window.change_nets(made, dropped)
        self._rename(window, dropped)
        if len(window.rows):
            self._context = int(window.rows["context"][-1])
        self._blocks.end_window()
        joined = window.with_rows(made, made["time"], ~dropped)
        return self._device.join(joined, raw[on_device]).tobytes()

    def _place(self, window: Window, events: Raw) -> Ints:
        """Give each event its context; the row of the operator that it is in, or −1."""
        operator = window.operator_at(events["time"])
        inside = operator >= 0
        before = np.searchsorted(window.logged, events["time"]) - 1
        latest = np.concatenate([[self._context], window.rows["context"]])
        events["context"] = latest[np.where(inside, operator, before) + 1]
        return operator

    def _pair(self, window: Window, events: Raw, in_operator: Ints) -> Mask:
        """Tell the blocks everything in the order of time; which rows are replaced by those they make."""
        blocks, dropped = self._blocks, np.zeros(len(window.rows), np.bool_)
        moves = np.flatnonzero(window.is_storage)
        both = np.concatenate([window.rows[moves], events])
        number = np.concatenate([moves, in_operator])
        order = np.argsort(both["time"], kind="stable")
        for row, place in zip(both[order].tolist(), number[order].tolist(), strict=True):
            code, context, time, size, storage = row
            match code % DEVICE_UNIT:
                case rows.MEMORY if size > 0:
                    blocks.allocated(size, time, self._allocation_code(window, place), context)
                case rows.MEMORY:
                    blocks.released(-size, time, context)
                case rows.ALLOCATION:
                    dropped[place] = blocks.found(storage, size)
                case _:
                    dropped[place] = blocks.died(storage, size, code, context)
        return dropped

    def _allocation_code(self, window: Window, operator: int) -> int:
        """The code of an ALLOCATION row by the operator with this row; −1: by none."""
        label = int(window.rows["code"][operator]) // LABEL_UNIT if operator >= 0 else -1
        code = self._allocation_codes.get(label)
        if code is None:
            strings, names = self._labels.tables.strings, self._labels.names
            name = strings.get(names[label]) if label >= 0 else UNSEEN
            code = self._labels.code(rows.ALLOCATION, name, Category.UNATTRIBUTED)
            self._allocation_codes[label] = code
        return code

    def _made(self, now: int) -> Raw:
        self._blocks.decide(now)
        made = np.array(self._blocks.rows(), rows.ROW_DTYPE)
        return made[np.argsort(made["time"], kind="stable")]

    def _rename(self, window: Window, dropped: Mask) -> None:
        """Let what is said of a storage be said of its block."""
        kind, codes = window.kind, window.rows["code"]
        said = np.array(self._labels.categories, np.uint8)[codes // LABEL_UNIT] != Category.UNATTRIBUTED
        claims = dropped & (kind == rows.ALLOCATION) & said
        codes[claims] += rows.CATEGORY - rows.ALLOCATION
        dropped &= ~claims
        for at in np.flatnonzero(claims | (kind == rows.CATEGORY)).tolist():
            number = self._blocks.number(int(window.rows["second"][at]))
            if number is not None:
                window.rows["second"][at] = number
