"""What a summary must say, worked out one event at a time in plain Python: slow, and written on its own."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from memexport.model import UNKNOWN_SIZE, Category, EventKind, Phase

Event = dict[str, Any]
EXPLAINED = set(Category) - {Category.UNKNOWN, Category.UNATTRIBUTED}


@dataclass
class Place:
    """One device of one rank."""

    live: dict[int, Event] = field(default_factory=dict)
    start: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    moment: Event | None = None
    before_first: bool = False
    live_at_peak: dict[int, Event] = field(default_factory=dict)
    others_at_peak: dict[str, int] = field(default_factory=dict)
    device_free: int | None = None
    failed: list[dict[str, Any]] = field(default_factory=list)
    marked: int = 0


def summarize(events: list[Event]) -> dict[str, Any]:
    """The parts of the summary's JSON that depend on the events; places by (rank, device)."""
    places: dict[tuple[int, int], Place] = defaultdict(Place)
    whole_ranks_started: list[int] = []
    for event in events:
        if event["kind"] == EventKind.MARKER and event["name"] == "peak":
            continue
        if (
            event["kind"] == EventKind.MARKER
            and event["name"] == "start"
            and event["rank"] not in whole_ranks_started
            and -1 not in whole_ranks_started
        ):
            _start(event, places)
            if event["device"] == -1:
                whole_ranks_started.append(event["rank"])
        if event["device"] >= 0:
            _add(event, places[event["rank"], event["device"]])
    return {
        **_totals(events),
        "places": {key: _place(place) for key, place in sorted(places.items())},
        "current": {
            key: _by_category(place.live, place.last.get("allocated")) for key, place in places.items()
        },
    }


def _start(event: Event, places: dict[tuple[int, int], Place]) -> None:
    if event["device"] >= 0:
        places[event["rank"], event["device"]]
    for (rank, device), place in places.items():
        rating = 2 if event["device"] in (-1, device) else 1
        if event["rank"] in (-1, rank) and rating > place.marked:
            place.marked = rating
            place.start = dict(place.last)
            place.peak = dict(place.last)
            if "allocated" in place.last:
                place.moment, place.before_first = event, False
                place.live_at_peak = dict(place.live)
                place.others_at_peak = dict(place.last)


def _add(event: Event, place: Place) -> None:
    before = dict(place.live)
    address, kind = event["address"], event["kind"]
    if address and kind == EventKind.ALLOCATION:
        place.live[address] = event
    if address and kind == EventKind.RELEASE:
        place.live.pop(address, None)
    _add_failed(event, place)
    others = dict(place.last)
    others |= {name: event[f"{name}_bytes"] for name in ("active", "reserved") if event[f"{name}_bytes"] >= 0}
    for counter in ("allocated", "active", "reserved"):
        value = event[f"{counter}_bytes"]
        if value < 0:
            continue
        if counter not in place.start:
            start = value
            if counter == "allocated" or (counter == "active" and value == event["allocated_bytes"]):
                start = max(0, value - _change(event))
            place.start[counter] = start
            if start > value:
                place.peak[counter] = start
                if counter == "allocated":
                    place.moment, place.before_first, place.live_at_peak = event, True, before
                    place.others_at_peak = {}
        if value > place.peak.get(counter, -1):
            place.peak[counter] = value
            if counter == "allocated":
                place.moment, place.before_first, place.live_at_peak = event, False, dict(place.live)
                place.others_at_peak = others
        place.last[counter] = value


def _add_failed(event: Event, place: Place) -> None:
    size = event["size_bytes"] if event["size_bytes"] >= 0 else None
    if event["kind"] == EventKind.SAMPLE and event["name"] == "device_free":
        place.device_free = size
    if event["kind"] == EventKind.MARKER and event["name"] == "oom":
        request = {"bytes": size, "device_free_bytes": place.device_free}
        request |= {"time_unix_ns": event["time_unix_ns"], **_who(event)}
        place.failed.append({**request, **_at_failure(event, place)})
        place.device_free = None


def _who(event: Event) -> dict[str, Any]:
    stack = event["stack"]
    names_file = not stack or re.fullmatch(r".+?:-?\d+:.+", stack[-1])
    operator, stack = (None, stack) if names_file else (stack[-1], stack[:-1] or None)
    return {"stack": stack, "operator": operator, "module": event["module"], "phase": _phase(event)}


def _at_failure(event: Event, place: Place) -> dict[str, Any]:
    own = {name: event[f"{name}_bytes"] for name in ("allocated", "active", "reserved")}
    known = place.last | {name: value for name, value in own.items() if value >= 0}
    counter = known.get("allocated")
    unused = known.get("reserved", -1) - known.get("active", 2**62)
    return {
        "allocated_bytes": counter,
        "reserved_bytes": known.get("reserved"),
        "fragmentation_bytes": unused if unused >= 0 else None,
        "categories": _by_category(place.live, counter),
        "modules": _by_string("module", place.live, counter),
        "operators": _by_string("name", place.live, counter),
        "stacks": _by_stack(place.live, counter),
    }


def _change(event: Event) -> int:
    if event["size_bytes"] == UNKNOWN_SIZE:
        return 0
    sign = {EventKind.ALLOCATION: 1, EventKind.OPERATOR: 1, EventKind.RELEASE: -1}
    return event["size_bytes"] * sign.get(event["kind"], 0)


def _place(place: Place) -> dict[str, Any]:
    moment, known = place.moment, not place.before_first
    names = {EventKind.ALLOCATION, EventKind.OPERATOR}
    result: dict[str, Any] = {
        counter: (
            {"start": place.start[counter], "peak": place.peak[counter], "end": place.last[counter]}
            if counter in place.start
            else None
        )
        for counter in ("allocated", "active", "reserved")
    }
    if moment is None:
        result |= dict.fromkeys(("peak_time_unix_ns", "peak_operator", "peak_module", "peak_phase"))
    else:
        end = moment["time_unix_ns"] + max(0, moment["duration_ns"])
        result["peak_time_unix_ns"] = end if known else moment["time_unix_ns"]
        is_named = moment["kind"] in names or _is_inside_an_operator(moment)
        result["peak_operator"] = moment["name"] if known and is_named else None
        result["peak_module"] = moment["module"] if known else None
        result["peak_phase"] = _phase(moment) if known else None
    peak = place.peak.get("allocated")
    result["categories_at_peak"] = _by_category(place.live_at_peak, peak)
    result["modules_at_peak"] = _by_string("module", place.live_at_peak, peak)
    result["operators_at_peak"] = _by_string("name", place.live_at_peak, peak)
    others = place.others_at_peak
    unused = others.get("reserved", -1) - others.get("active", 2**62)
    result["fragmentation_at_peak"] = unused if unused >= 0 else None
    result["stacks_at_peak"] = _by_stack(place.live_at_peak, peak)
    result["failed_requests"] = place.failed[:20]
    return result


def _is_inside_an_operator(event: Event) -> bool:
    name = event["name"] or ""
    return event["kind"] == EventKind.SAMPLE and ("." in name or "::" in name)


def _by_category(live: dict[int, Event], counter: int | None) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for event in live.values():
        category = Category(event["category"])
        sums[(category if category in EXPLAINED else Category.UNATTRIBUTED).name.lower()] += _size(event)
    sums["unattributed"] += _rest(live, counter)
    return {name: size for name, size in sums.items() if size}


def _by_string(column: str, live: dict[int, Event], counter: int | None) -> dict[str | None, int]:
    sums: Counter[str | None] = Counter()
    for event in live.values():
        sums[event[column]] += _size(event)
    sums[None] += _rest(live, counter)
    return {name: size for name, size in sums.items() if size}


def _by_stack(live: dict[int, Event], counter: int | None) -> dict[Any, tuple[int, int]]:
    if not any(event["stack"] for event in live.values()):
        return {}
    sums: Counter[Any] = Counter()
    counts: Counter[Any] = Counter()
    for event in live.values():
        key = tuple(event["stack"]) if event["stack"] else None
        sums[key] += _size(event)
        counts[key] += 1
    if rest := _rest(live, counter):
        sums[None] += rest
    return {key: (sums[key], counts[key]) for key in sums if sums[key]}


def _size(event: Event) -> int:
    return max(0, event["size_bytes"])


def _rest(live: dict[int, Event], counter: int | None) -> int:
    return 0 if counter is None else max(0, counter - sum(_size(event) for event in live.values()))


def _phase(event: Event) -> str | None:
    return Phase(event["phase"]).name.lower() if event["phase"] else None


def _totals(events: list[Event]) -> dict[str, Any]:
    operators: Counter[tuple[Any, ...]] = Counter()
    calls: Counter[tuple[Any, ...]] = Counter()
    for event in events:
        if event["kind"] == EventKind.OPERATOR:
            key = (event["name"], event["module"], _phase(event))
            operators[key] += 0 if event["size_bytes"] == UNKNOWN_SIZE else event["size_bytes"]
            calls[key] += 1
    ends = [event["time_unix_ns"] + max(0, event["duration_ns"]) for event in events]
    steps = {
        event["step"]
        for event in events
        if event["kind"] == EventKind.SPAN and event["name"] == "step" and event["step"] >= 0
    }
    return {
        "events": len(events),
        **{
            name: sum(event["kind"] == kind for event in events)
            for name, kind in (
                ("operators", EventKind.OPERATOR),
                ("allocations", EventKind.ALLOCATION),
                ("releases", EventKind.RELEASE),
            )
        },
        "steps": len(steps),
        "duration_ns": max(ends) - min(event["time_unix_ns"] for event in events) if events else 0,
        "top_operators": {key: (operators[key], calls[key]) for key in calls},
        "markers": [
            {"name": event["name"], "time_unix_ns": event["time_unix_ns"], "event_index": index}
            for index, event in enumerate(events)
            if event["kind"] == EventKind.MARKER
        ],
    }
