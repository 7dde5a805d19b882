"""Streams of events for tests: as dicts, and as batches cut anywhere."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from memexport.model import COLUMNS, NULLS, UNKNOWN_SIZE, Category, EventBatch, EventKind, Phase, Tables

Event = dict[str, Any]
INTERNED = ("name", "module")

# Few values each, so that addresses are reused, maxima tie and markers meet.
events = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(list(EventKind)),
        "time_unix_ns": st.integers(0, 50),
        "duration_ns": st.integers(-1, 5),
        "name": st.sampled_from([None, "aten.mm.default", "aten.add.Tensor", "step", "start", "peak"]),
        "module": st.sampled_from([None, "layers.0", "layers.1", "Net"]),
        "phase": st.sampled_from(list(Phase)),
        "category": st.sampled_from(list(Category)),
        "device": st.integers(-1, 2),
        "step": st.integers(-1, 3),
        "rank": st.sampled_from([-1, -1, 0, 1]),
        "size_bytes": st.sampled_from([UNKNOWN_SIZE, 0, 1, 10, 100, 1000]),
        "allocated_bytes": st.sampled_from([-1, 0, 5, 10, 100, 1000, 1100]),
        "active_bytes": st.sampled_from([-1, 0, 5, 100, 2000]),
        "reserved_bytes": st.sampled_from([-1, 0, 4096, 8192]),
        "address": st.integers(0, 4),
    }
)


@st.composite
def operator_changes(draw: st.DrawFn) -> Event:
    """An event in which an operator may also have given memory back."""
    event = draw(events)
    if event["kind"] == EventKind.OPERATOR:
        event["size_bytes"] = draw(st.sampled_from([UNKNOWN_SIZE, -1, -100, 0, 100]))
    return event


streams = st.lists(operator_changes(), max_size=60)
one_place = st.lists(operator_changes().map(lambda event: {**event, "device": 0, "rank": -1}), max_size=60)


def event(kind: EventKind, **columns: Any) -> Event:
    """One event; what is not given is null, the device is 0."""
    defaults = {**NULLS, "name": None, "module": None, "device": 0}
    return {**defaults, "kind": kind, **columns}


def batch_of(stream: list[Event], tables: Tables) -> EventBatch:
    """The events as columns; names and modules are interned."""
    columns: dict[str, Any] = {}
    for column in COLUMNS:
        values = [event.get(column, NULLS[column]) for event in stream]
        if column in INTERNED:
            values = [0 if value is None else tables.strings.intern(value) for value in values]
        columns[column] = values
    return EventBatch(**columns)
