"""Snapshots of many shapes as torch and users pickle them, and a plain reader of them to compare with."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import random
from collections import Counter
from pathlib import Path
from typing import Any

from memexport.model import Tables
from memexport.sources._snapshot_builder import Builder
from memexport.sources._snapshot_pickle import read_stream

ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "snapshot", "oom", "new_in_2030")
ENTRY_KEYS = {
    *("action", "addr", "size", "stream", "time_us", "frames", "device_free"),
    *("compile_context", "user_metadata", "pool_id"),
}


class SnapshotMaker:
    """Makes a snapshot from a seed: its choices decide how alike the entries are.

    Every string that torch makes anew for each entry is a new object here too, as pickle sees the difference.
    """

    def __init__(self, seed: int, *, odd: float) -> None:
        self._random = random.Random(seed)
        self._odd = odd
        self._frames = [self._frame(n) for n in range(self._random.choice((1, 5, 300)))]
        self._stacks = [self._stack() for _ in range(self._random.choice((1, 4, 40)))]
        self._keys = self._some_keys()
        self._time = 1_700_000_000_000_000

    def snapshot(self, events: int) -> Any:
        """With so many entries in one of one to three traces, and a few in the others."""
        counts = [events, *(self._random.randrange(4) for _ in range(self._random.randrange(3)))]
        self._random.shuffle(counts)
        made = {
            "segments": [self._segment() for _ in range(self._random.randrange(4))],
            "device_traces": [self._trace(count) for count in counts],
            "allocator_settings": {"expandable_segments": True, "divisions": {"1": 0}, "conf": "a:b"},
            "external_annotations": [
                {"stage": "START", "name": "forward", "device": 0, "time_us": 5} for _ in range(2)
            ],
        }
        keys = list(made)
        self._random.shuffle(keys)
        return {key: made[key] for key in keys}

    def _trace(self, count: int) -> list[Any]:
        entries: list[Any] = []
        for _ in range(count):
            repeats = entries and self._random.random() < self._odd / 5
            entries.append(self._random.choice(entries) if repeats else self._entry())
        return entries

    def _rarely(self) -> bool:
        return self._random.random() < self._odd

    def _some_keys(self) -> list[str]:
        keys = ["action", "addr", "size", "stream"]
        if self._random.random() < 0.8:
            keys.append("time_us")
        if self._random.random() < 0.5:
            keys += ["compile_context", "user_metadata"]
        if self._random.random() < 0.3:
            keys.append("pool_id")
        if self._random.random() < 0.2:
            keys.append("of_tomorrow")
        if self._random.random() < 0.2:
            self._random.shuffle(keys)
        return [*keys, "frames"] if self._random.random() < 0.7 else ["action", "frames", *keys[1:]]

    def _frame(self, number: int) -> dict[str, Any]:
        frame = {"name": f"f{number}", "filename": f"C:\\x{number % 7}.py", "line": number * 300}
        return dict(reversed(frame.items())) if number % 5 == 0 else frame

    def _stack(self) -> list[dict[str, Any]]:
        depth = self._random.choice((0, 1, 1, 2, 9))
        return [self._random.choice(self._frames) for _ in range(depth)]

    def _entry(self) -> dict[str, Any]:
        keys = list(self._keys)
        if self._rarely():
            self._random.shuffle(keys)
        if self._rarely():
            keys = [key for key in keys if key == "action" or self._random.random() < 0.7]
        entry = {key: getattr(self, f"_{key}_value")() for key in keys}
        if entry["action"] == "oom" and "addr" in entry:
            entry["device_free"] = entry.pop("addr")
            entry["device_free"] %= 2**63
        return entry

    def _action_value(self) -> str:
        return self._random.choice(ACTIONS if self._rarely() else ACTIONS[:3])

    def _addr_value(self) -> int:
        if self._rarely():
            return self._random.choice((0, 255, 256, 65_536, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1))
        # Some hold what looks like the beginning of an entry.
        return self._random.choice((0x7F0000000000, 0x7D94287D9428)) + self._random.randrange(10**9)

    def _size_value(self) -> int:
        return self._random.randrange(1 << self._random.choice((4, 8, 16, 24, 31, 40)))

    def _stream_value(self) -> int:
        return self._random.choice((1, -1, 2**47, 2**64 - 1)) if self._rarely() else 0

    def _time_us_value(self) -> int:
        self._time += self._random.randrange(5)
        return self._time

    def _compile_context_value(self) -> str | None:
        return None if self._rarely() else "".join(["N", "/A"])

    def _user_metadata_value(self) -> Any:
        if self._rarely():
            return self._random.choice((None, {"step": 3, "path": ["a", (1, None)]}, "é" * 200, "\ud800!", 7))
        return self._random.choice(("", "", "epoch " + str(self._random.randrange(3))))

    def _pool_id_value(self) -> tuple[int, int]:
        high = 2**31 if self._rarely() else 3
        return (self._random.randrange(high), 0)

    def _of_tomorrow_value(self) -> Any:
        return self._random.choice(([], {"x": None}, True, 1.5, "t")) if self._rarely() else 17

    def _frames_value(self) -> list[dict[str, Any]]:
        if self._rarely():
            self._frames.append(self._frame(len(self._frames)))
            return [self._frames[-1], *self._random.choice(self._stacks)]
        stack = self._random.choice(self._stacks)
        return stack if self._random.random() < 0.5 else list(stack)

    def _segment(self) -> dict[str, Any]:
        blocks = [self._block() for _ in range(self._random.randrange(4))]
        segment = {
            "device": 0,
            "address": self._addr_value() % 2**60,
            "total_size": self._size_value(),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": self._pool_id_value(),
            "is_expandable": self._random.random() < 0.5,
            "frames": self._frames_value(),
            "blocks": blocks,
        }
        for key in ("segment_pool_id", "is_expandable", "frames"):
            if self._rarely():
                del segment[key]
        return segment

    def _block(self) -> dict[str, Any]:
        size = self._size_value()
        if self._random.random() < 0.5:
            frames = self._frames_value()
            return {"address": self._addr_value(), "size": size, "requested_size": size // 2} | {
                "state": "active_allocated",
                "frames": frames,
            }
        history = [{"addr": 5, "real_size": size // 3, "frames": self._frames_value()}, {"addr": 5}]
        return {"size": size, "state": "inactive"} | ({"history": history} if size % 2 else {})


def pickled(value: Any, protocol: int, pickler: str) -> bytes:
    """By C's pickler, Python's, or C's with what it memoizes in vain left out."""
    if pickler == "python":
        stream = io.BytesIO()
        pickle._Pickler(stream, protocol).dump(value)
        return stream.getvalue()
    data = pickle.dumps(value, protocol)
    return pickletools.optimize(data) if pickler == "optimized" else data


def read_as_plain(data: bytes, window_bytes: int) -> dict[str, Any]:
    """What `read_snapshot` makes of it, with every id looked up."""
    tables = Tables()
    builder = Builder(Path("test.pickle"), tables, len(data))
    snapshot = read_stream(io.BytesIO(data), builder, len(data), window_bytes)

    def text(number: int) -> str | None:
        return tables.strings.get(number)

    def stack(number: int) -> tuple[str | None, ...]:
        return tuple(text(frame) for frame in tables.stacks.frames(number))

    looked_up = {
        "action": lambda number: snapshot.actions[number],
        **dict.fromkeys(("compile_context", "user_metadata", "segment_type", "state"), text),
        "stack": stack,
    }

    def rows(columns: Any) -> list[dict[str, Any]]:
        lists = {name: [looked_up.get(name, int)(v) for v in c.tolist()] for name, c in columns.items()}
        return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]

    return {
        "traces": [rows(trace) for trace in snapshot.traces],
        "segments": rows(snapshot.segments),
        "blocks": rows(snapshot.blocks),
        "annotations": [(a.name, a.stage, a.device, a.time_us) for a in snapshot.annotations],
        "settings": dict(snapshot.settings),
        "overflowed": snapshot.trace_overflowed,
        "ignored": dict(snapshot.ignored),
        "actions": list(snapshot.actions),
    }


def expected(data: bytes) -> dict[str, Any]:
    """The same, the plain way: of what Python's own unpickler makes of it."""
    root = pickle.loads(data)
    if isinstance(root, list):
        root = {"segments": root}
    ignored: Counter[str] = Counter()
    traces = [[_entry(entry) for entry in trace] for trace in root.get("device_traces", [])]
    # What is in a trace twice is one object, whose keys count once.
    for entry in {id(entry): entry for trace in root.get("device_traces", []) for entry in trace}.values():
        ignored.update(f"key {key!r} of a trace entry" for key in entry.keys() - ENTRY_KEYS)
    segments, blocks = [], []
    for number, segment in enumerate(root.get("segments", [])):
        segments.append(_segment(segment))
        offset = 0
        for block in segment.get("blocks", ()):
            blocks.append(_block(block, number, segment["address"] + offset))
            offset += block["size"]
    return {
        "traces": traces,
        "segments": segments,
        "blocks": blocks,
        "annotations": [
            (a["name"], a["stage"], a["device"], a["time_us"]) for a in root.get("external_annotations", ())
        ],
        "settings": {key: _text(value) for key, value in root.get("allocator_settings", {}).items()},
        "overflowed": root.get("trace_alloc_overflowed"),
        "ignored": dict(ignored),
        "actions": list(dict.fromkeys(entry["action"] for trace in traces for entry in trace)),
    }


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "action": entry["action"],
        "address": entry.get("addr", 0),
        "size": entry.get("size", -1),
        "stream": entry.get("stream", 0) % 2**64,
        "time_us": entry.get("time_us", -1),
        "stack": _stack(entry.get("frames", ())),
        "device_free": entry.get("device_free", -1),
        "compile_context": _text(entry.get("compile_context")) or None,
        "user_metadata": _text(entry.get("user_metadata")) or None,
    }


def _segment(segment: dict[str, Any]) -> dict[str, Any]:
    first, second = segment.get("segment_pool_id", (0, 0))
    return {
        "device": segment["device"],
        "address": segment["address"],
        "total_size": segment["total_size"],
        "stream": segment["stream"],
        "segment_type": segment["segment_type"],
        "pool": first << 32 | second,
        "is_expandable": int(segment.get("is_expandable", False)),
        "stack": _stack(segment.get("frames", ())),
    }


def _block(block: dict[str, Any], segment: int, address: int) -> dict[str, Any]:
    last = (block.get("history") or [{}])[0]
    return {
        "segment": segment,
        "address": block.get("address", address),
        "size": block["size"],
        "requested_size": block.get("requested_size", last.get("real_size", -1)),
        "state": block["state"],
        "stack": _stack(block.get("frames", last.get("frames", ()))),
    }


def _stack(frames: Any) -> tuple[str, ...]:
    return tuple(f"{f['filename']}:{f['line']}:{f['name']}" for f in reversed(frames))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        # Half of a surrogate pair is no character.
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
