"""What a snapshot comes to, worked out on the pickle's own dicts: slow, and written on its own."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

SIGNS = {
    "alloc": {"allocated": 1, "active": 1},
    "free_requested": {"allocated": -1},
    "free_completed": {"active": -1},
    "free": {"allocated": -1, "active": -1},
    "segment_alloc": {"reserved": 1},
    "segment_map": {"reserved": 1},
    "segment_free": {"reserved": -1},
    "segment_unmap": {"reserved": -1},
}
PENDING = ("active_pending_free", "active_awaiting_free")


def replay(path: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Start, peak and end of each counter of each device that the snapshot speaks of."""
    content = pickle.loads(path.read_bytes())
    if isinstance(content, list):
        content = {"segments": content, "device_traces": []}
    traces = dict(enumerate(content["device_traces"]))
    indices = {index for index, trace in traces.items() if trace}
    indices |= {segment["device"] for segment in content["segments"]}
    return {f"cuda:{i}": _device(i, traces.get(i, []), content["segments"]) for i in sorted(indices)}


def _device(index: int, trace: list[Any], segments: list[Any]) -> dict[str, dict[str, int]]:
    end = Counter({"allocated": 0, "active": 0, "reserved": 0})
    for segment in segments:
        if segment["device"] != index:
            continue
        end["reserved"] += segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                end["allocated"] += _requested(block)
                end["active"] += _requested(block)
            elif block["state"] in PENDING:
                end["active"] += _requested(block)
    return {name: _counter(name, end[name], trace) for name in ("allocated", "active", "reserved")}


def _counter(name: str, end: int, trace: list[Any]) -> dict[str, int]:
    changes = [SIGNS.get(entry["action"], {}).get(name, 0) * entry["size"] for entry in trace]
    start = max(0, end - sum(changes))
    value = peak = start
    for change in changes:
        value += change
        peak = max(peak, value)
    return {"start": start, "peak": peak, "end": value}


def _requested(block: dict[str, Any]) -> int:
    if "requested_size" in block:
        return int(block["requested_size"])
    return int(block["history"][0]["real_size"]) if block.get("history") else int(block["size"])


def live_at_peak(path: Path, index: int) -> Counter[tuple[str, ...]]:
    """Bytes by stack, outermost frame first, right after the entry at which `allocated` was first highest.

    For a snapshot that does not contradict itself. What only its release tells of has no stack.
    """
    content = pickle.loads(path.read_bytes())
    trace = content["device_traces"][index] if index < len(content["device_traces"]) else []
    allocated = _device(index, trace, content["segments"])["allocated"]
    live = _live_before(trace, [s for s in content["segments"] if s["device"] == index])
    value = allocated["start"]
    for entry in trace:
        if value == allocated["peak"]:
            break
        change = SIGNS.get(entry["action"], {}).get("allocated", 0)
        value += change * entry["size"]
        if change > 0:
            live[entry["addr"]] = entry["size"], _texts(entry.get("frames", []))
        elif change < 0:
            live.pop(entry["addr"], None)
    sums: Counter[tuple[str, ...]] = Counter()
    for size, stack in live.values():
        sums[stack] += size
    return sums


def _live_before(trace: list[Any], segments: list[Any]) -> dict[int, tuple[int, tuple[str, ...]]]:
    first = defaultdict(list)
    for entry in trace:
        if "allocated" in SIGNS.get(entry["action"], {}):
            first[entry["addr"]].append(entry)
    live = {a: (e[0]["size"], ()) for a, e in first.items() if e[0]["action"] != "alloc"}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and address not in first:
                frames = block.get("frames") or (block.get("history") or [{}])[0].get("frames", [])
                live[address] = _requested(block), _texts(frames)
            address += block["size"]
    return live


def _texts(frames: list[Any]) -> tuple[str, ...]:
    return tuple(f"{frame['filename']}:{frame['line']}:{frame['name']}" for frame in reversed(frames))
