"""A long stream of events that adds up at every moment: for what leaves events out."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import numpy as np

from memexport.model import COLUMNS, NULLS, Category, Device, EventBatch, EventKind, RecordingInfo, Tables

BATCH_EVENTS = 1_000
START = 1_750_000_000_000_000_000
STEP = 2
"""The id of the string "step": the second of every stream's table; the names of batches follow."""


class Stream:
    """Operators, allocations that live for a while or for ever, and a step now and then; always the same.

    Each batch brings a string and a stack.

    Attributes:
        live_bytes: after the events that were given out.
        events: how many were.
    """

    def __init__(self) -> None:
        self.info = RecordingInfo(producer="test", devices=[Device("cpu")])
        self.tables = Tables()
        self.live_bytes = 0
        self.events = 0
        for string in ("dropped", "step"):
            self.tables.strings.intern(string)

    def batches(self, count: int) -> Iterator[EventBatch]:
        """So many."""
        for number in range(count):
            name = self.tables.strings.intern(f"aten.op{number}.default")
            self.tables.stacks.intern([name])
            batch, self.live_bytes = _batch(number)
            self.events += len(batch)
            yield batch


class _Maker:
    def __init__(self) -> None:
        self.live_bytes = 0
        self.events = 0
        self._random = random.Random(7)
        self._live: dict[int, tuple[int, int]] = {}
        self._next_address = 1
        self._step = 0

    def event(self, batch: int) -> dict[str, int]:
        self.events += 1
        when = {"time_unix_ns": START + self.events * 1_000, "duration_ns": 0, "step": self._step}
        draw = self._random.random()
        if draw < 0.01:
            self._step += 1
            return {**when, "kind": EventKind.SPAN, "name": STEP}
        if draw < 0.4 or not self._live:
            size, category = self._random.randrange(1, 10**6), self._random.choice([*Category][1:9])
            address, self._next_address = self._next_address, self._next_address + 1
            self._live[address] = size, category
            self.live_bytes += size
            move = {"kind": EventKind.ALLOCATION, "name": STEP + 1 + batch, "stack": batch + 1}
        elif draw < 0.79:
            address = self._random.choice([*self._live][-200:])
            size, category = self._live.pop(address)
            self.live_bytes -= size
            move = {"kind": EventKind.RELEASE}
        else:
            size = category = address = 0
            move = {"kind": EventKind.OPERATOR, "name": STEP + 1 + batch}
        counters = {"allocated_bytes": self.live_bytes, "active_bytes": self.live_bytes, "device": 0}
        return {**when, **counters, **move, "size_bytes": size, "category": category, "address": address}


_MAKER = _Maker()


@functools.cache
def _batch(number: int) -> tuple[EventBatch, int]:
    """The batch with this number, made once and in order, and the bytes that are live after it."""
    if number:
        _batch(number - 1)
    rows = [_MAKER.event(number) for _ in range(BATCH_EVENTS)]
    columns = {
        name: np.array([row.get(name, NULLS[name]) for row in rows], dtype) for name, dtype in COLUMNS.items()
    }
    return EventBatch(**columns), _MAKER.live_bytes
