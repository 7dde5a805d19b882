"""Snapshots as each generation of torch writes them, built entry by entry."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "snapshots"
SILMONT = DATA / "silmont_mem_snapshot.pickle"
DRISSPG = DATA / "drisspg_mini_snapshot.pickle"
YIYI = DATA / "yiyi_oom.pickle"
REAL = [SILMONT, DRISSPG, YIYI]

TIME_US = 1_770_000_000_000_000
MIB = 1 << 20

Entry = dict[str, Any]


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    """A frame as torch writes it."""
    return {"filename": filename, "line": line, "name": name}


TRAIN = [frame("model.py", 7, "forward"), frame("train.py", 3, "main")]
"""Innermost first, as in the files."""


def entry(action: str, addr: int = 0, size: int = 0, at: int | None = 0, **more: Any) -> Entry:
    """An entry of a trace, `at` so many microseconds after `TIME_US`; None: without a time."""
    made = {"action": action, "addr": addr, "size": size, "stream": 0, **more}
    return made if at is None else {**made, "time_us": TIME_US + at}


def oom(size: int, device_free: int, at: int = 0) -> Entry:
    """An OOM: it has `device_free` in place of an address."""
    made = entry("oom", size=size, at=at, device_free=device_free, frames=TRAIN)
    del made["addr"]
    return made


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    """A block of which all was requested."""
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": [], **more}


def segment(address: int, total_size: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A segment of device 0."""
    return {
        "device": 0,
        "address": address,
        "total_size": total_size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": list(blocks),
        **more,
    }


def snapshot(*traces: list[Entry], segments: Any = (), **more: Any) -> dict[str, Any]:
    """A whole snapshot, with one trace for each device."""
    return {"segments": list(segments), "device_traces": list(traces), **more}


def written(folder: Path, content: Any, name: str = "snapshot.pickle") -> Path:
    """The file, pickled as torch does it."""
    path = folder / name
    path.write_bytes(pickle.dumps(content, 4))
    return path


def random_snapshot(seed: int) -> dict[str, Any]:
    """What an allocator might have written: it began before the trace, whose oldest entries may be lost."""
    chance = random.Random(seed)
    devices = [_Allocator(chance, index) for index in range(chance.choice([1, 1, 2, 3]))]
    now = 0
    for _ in range(chance.choice([0, 5, 40, 200])):
        now += chance.choice([0, 0, 1, 50])
        chance.choice(devices).step(now)
    lost = chance.choice([0, 0, 0.3, 0.9])
    traces = [device.trace[int(len(device.trace) * lost) :] for device in devices]
    if chance.random() < 0.2:
        for trace in traces:
            for made in trace:
                del made["time_us"]
    return snapshot(*traces, segments=[made for device in devices for made in device.segments()])


class _Allocator:
    """A toy caching allocator: blocks of random sizes in segments, never split."""

    def __init__(self, chance: random.Random, device: int) -> None:
        self._chance, self._device = chance, device
        self._mapped: dict[int, int] = {}
        self._live: dict[int, tuple[int, Any]] = {}
        self._pending: dict[int, int] = {}
        self._next = 1 << 30
        self.trace: list[Entry] = []
        for _ in range(chance.choice([0, 3, 10])):
            self._allocate(0)
        self.trace.clear()

    def step(self, now: int) -> None:
        """Do something."""
        kinds = [self._allocate] * 3 + [self._free] * 2 + [self._complete, self._give_back, self._fail]
        self._chance.choice(kinds)(now)

    def segments(self) -> list[dict[str, Any]]:
        """The state at the end."""
        made = []
        for address, size in self._mapped.items():
            blocks = [block(address, size, "inactive")]
            if address in self._live:
                requested, frames = self._live[address]
                blocks = [block(address, size, requested_size=requested, frames=frames)]
            elif address in self._pending:
                requested = self._pending[address]
                blocks = [block(address, size, "active_pending_free", requested_size=requested)]
            made.append(segment(address, size, *blocks, device=self._device))
        return made

    def _allocate(self, now: int) -> None:
        free = [a for a in self._mapped if a not in self._live and a not in self._pending]
        if free and self._chance.random() < 0.7:
            address = self._chance.choice(free)
        else:
            address, size = self._next, self._chance.choice([512, 4096, 2 * MIB])
            self._next += size
            self._mapped[address] = size
            self.trace.append(entry("segment_alloc", address, size, now, frames=TRAIN))
        requested = self._chance.randint(1, self._mapped[address])
        frames = self._chance.choice([[], TRAIN, TRAIN[1:]])
        self._live[address] = requested, frames
        self.trace.append(entry("alloc", address, requested, now, frames=frames))

    def _free(self, now: int) -> None:
        if not self._live:
            return
        address = self._chance.choice(list(self._live))
        requested, _ = self._live.pop(address)
        if self._chance.random() < 0.2:
            self.trace.append(entry("free", address, requested, now))
            return
        self._pending[address] = requested
        self.trace.append(entry("free_requested", address, requested, now, frames=TRAIN))
        if self._chance.random() < 0.7:
            self._completed(address, now)

    def _complete(self, now: int) -> None:
        if self._pending:
            self._completed(self._chance.choice(list(self._pending)), now)

    def _completed(self, address: int, now: int) -> None:
        self.trace.append(entry("free_completed", address, self._pending.pop(address), now))

    def _give_back(self, now: int) -> None:
        free = [a for a in self._mapped if a not in self._live and a not in self._pending]
        if free:
            address = self._chance.choice(free)
            self.trace.append(entry("segment_free", address, self._mapped.pop(address), now))

    def _fail(self, now: int) -> None:
        self.trace.append(oom(self._chance.randint(1, 1 << 40), self._chance.randint(0, 1 << 30), now))
