"""What a selection must have, worked out one event at a time in plain Python: slow, on its own."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import summary_oracle
from event_streams import event

from memexport.model import NULLS, UNKNOWN_SIZE, EventKind, Phase

COUNTERS = ("allocated_bytes", "active_bytes", "reserved_bytes")
Event = dict[str, Any]


def end_of(event: Event) -> int:
    """When it ended."""
    return event["time_unix_ns"] + max(0, event["duration_ns"])


def is_peak(event: Event) -> bool:
    """Whether it is the marker that comes last."""
    return event["kind"] == EventKind.MARKER and event["name"] == "peak"


def range_of(stream: list[Event], begin: int | None, until: int | None, by_time: bool) -> tuple[int, int]:
    """Which events the range has."""

    def first(limit: int) -> int:
        for index, one in enumerate(stream):
            if end_of(one) >= limit and not is_peak(one) if by_time else index >= limit:
                return index
        return len(stream)

    return 0 if begin is None else first(begin), len(stream) if until is None else first(until)


def replay(stream: list[Event], begin: int, until: int) -> dict[tuple[int, int], dict[str, Any]]:
    """The places of a summary of the events from `begin` up to `until`, knowing those before."""
    places: dict[tuple[int, int], summary_oracle.Place] = defaultdict(summary_oracle.Place)
    ranks_started: list[int] = []
    starts: dict[tuple[int, int], Event] = {}
    for index, one in enumerate([*stream[:until], None]):
        if index == begin:
            _begin_range(stream[:begin], places)
            for _, start in sorted(starts.items()):
                _start(start, places, ranks_started)
        if one is None or is_peak(one):
            continue
        is_start = one["kind"] == EventKind.MARKER and one["name"] == "start"
        if is_start and index < begin:
            # Only one start of each place counts, and it is the range's.
            starts[one["rank"], one["device"]] = {**one, "module": None, "phase": Phase.UNKNOWN}
        elif is_start:
            _start(one, places, ranks_started)
        if one["device"] >= 0:
            summary_oracle._add(one, places[one["rank"], one["device"]])
    return {key: summary_oracle._place(place) for key, place in sorted(places.items())}


def _begin_range(before: list[Event], places: dict[tuple[int, int], summary_oracle.Place]) -> None:
    """Forget what happened, but not what is there."""
    time = max((end_of(event) for event in before if not is_peak(event)), default=0)
    for key, place in list(places.items()):
        if not place.last and not place.live:
            del places[key]
            continue
        known = "allocated" in place.last
        place.start, place.peak = dict(place.last), dict(place.last)
        place.live_at_peak = dict(place.live) if known else {}
        place.moment = event(EventKind.SAMPLE, time_unix_ns=time, duration_ns=0) if known else None
        place.before_first, place.others_at_peak = False, dict(place.last) if known else {}


def _start(marker: Event, places: Any, ranks_started: list[int]) -> None:
    """What `summary_oracle.summarize` does at a marker "start"."""
    if marker["rank"] in ranks_started or -1 in ranks_started:
        return
    summary_oracle._start(marker, places)
    if marker["device"] == -1:
        ranks_started.append(marker["rank"])


def without_small(stream: list[Event], min_bytes: int) -> list[Event]:
    """The stream without small allocations, one event at a time."""
    live: dict[tuple[int, int, int], Event] = {}
    counted: set[tuple[int, int, str]] = set()
    shrunk: list[Event] = []
    for one in stream:
        key = (one["rank"], one["device"], one["address"])
        moves = one["kind"] in (EventKind.ALLOCATION, EventKind.RELEASE)
        paired = moves and one["device"] >= 0 and one["address"] != 0
        before = live.pop(key, None) if paired else None
        if paired and one["kind"] == EventKind.ALLOCATION:
            live[key] = one
        decisive = before if one["kind"] == EventKind.RELEASE and before else one
        small = moves and _is_small(decisive, min_bytes)
        for counter in ("allocated_bytes", "active_bytes"):
            place = (one["rank"], one["device"], counter)
            if one["device"] >= 0 and one[counter] >= 0 and place not in counted:
                counted.add(place)
                if small:
                    shrunk.append(_sample_before(one, counter))
        if small and one["kind"] == EventKind.ALLOCATION and before and not _is_small(before, min_bytes):
            shrunk.append({**one, "kind": EventKind.RELEASE, "size_bytes": before["size_bytes"]})
        elif small:
            counters_only = {name: NULLS[name] for name in ("size_bytes", "category", "address")}
            sample = {**one, **counters_only, "kind": EventKind.SAMPLE, "name": None}
            if any(one[name] >= 0 for name in COUNTERS):
                shrunk.append(sample)
        else:
            shrunk.append(one)
    return shrunk


def _sample_before(one: Event, counter: str) -> Event:
    """The counter as it was before the event changed it."""
    change = 0
    if one["size_bytes"] != UNKNOWN_SIZE and one[counter] == one["allocated_bytes"]:
        change = one["size_bytes"] if one["kind"] == EventKind.ALLOCATION else -one["size_bytes"]
    where = {name: one[name] for name in ("time_unix_ns", "rank", "device")}
    return event(EventKind.SAMPLE, **where, duration_ns=0, **{counter: max(0, one[counter] - change)})


def _is_small(allocation: Event, min_bytes: int) -> bool:
    """Whether it is known to be below the limit."""
    return UNKNOWN_SIZE != allocation["size_bytes"] < min_bytes
