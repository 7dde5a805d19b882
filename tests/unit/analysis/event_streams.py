"""Streams of events for tests: as dicts, and as batches cut anywhere."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from memexport.model import COLUMNS, NULLS, UNKNOWN_SIZE, Category, EventBatch, EventKind, Phase, Tables

Event = dict[str, Any]
INTERNED = ("name", "module")

# Few values each, so that addresses are reused, maxima tie and markers meet.
VALUES: dict[str, list[Any]] = {
    "kind": [EventKind.ALLOCATION, EventKind.RELEASE] * 3 + list(EventKind),
    "time_unix_ns": list(range(50)),
    "duration_ns": [-1, 0, 5],
    "name": [None, "aten.mm.default", "aten.add.Tensor", "step", "start", "peak", "oom", "device_free"],
    "module": [None, "layers.0", "layers.1", "Net"],
    "phase": list(Phase),
    "category": list(Category),
    "device": [0, 0, 0, 1, 2, -1],
    "step": [-1, 0, 1, 2],
    "rank": [-1, -1, -1, 0, 1],
    "size_bytes": [UNKNOWN_SIZE, 0, 1, 10, 100, 1000],
    "allocated_bytes": [-1, 0, 5, 10, 100, 1000, 1100],
    "active_bytes": [-1, 0, 5, 100, 2000],
    "reserved_bytes": [-1, 0, 4096, 8192],
    "address": [0, 1, 1, 2, 2, 3],
    "stack": [None, None, ["train.py:1:main"], ["train.py:1:main", "model.py:2:forward"]],
}

events = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})


def _random_stream(seed: int) -> list[Event]:
    """A long stream. Hypothesis draws short ones, in which little that was allocated is ever released."""
    choose = random.Random(seed).choice
    length = choose([10, 30, 80])
    return [{name: choose(values) for name, values in VALUES.items()} for _ in range(length)]


def _with_changes(stream: list[Event]) -> list[Event]:
    """Let an operator, unlike an allocation, also give memory back."""
    return [
        {**event, "size_bytes": -event["size_bytes"]}
        if event["kind"] == EventKind.OPERATOR and event["size_bytes"] in (10, 100)
        else event
        for event in stream
    ]


def _on_one_place(stream: list[Event]) -> list[Event]:
    return [{**event, "device": 0, "rank": -1} for event in stream]


streams = st.one_of(
    st.lists(events, max_size=40),
    st.integers(0, 2**32).map(_random_stream),
    st.integers(0, 2**32).map(_random_stream),
).map(_with_changes)
one_place = streams.map(_on_one_place)


def event(kind: EventKind, **columns: Any) -> Event:
    """One event; what is not given is null, the device is 0."""
    defaults = {**NULLS, "name": None, "module": None, "stack": None, "device": 0}
    return {**defaults, "kind": kind, **columns}


def batch_of(stream: list[Event], tables: Tables) -> EventBatch:
    """The events as columns; names, modules and stacks are interned."""
    columns: dict[str, Any] = {}
    for column in COLUMNS:
        values = [event.get(column, NULLS[column]) for event in stream]
        if column in INTERNED:
            values = [0 if value is None else tables.strings.intern(value) for value in values]
        if column == "stack":
            values = [tables.stacks.intern(map(tables.strings.intern, value or ())) for value in values]
        columns[column] = values
    return EventBatch(**columns)
