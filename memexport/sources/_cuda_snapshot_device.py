"""One device of a torch.cuda memory snapshot: its counters, and what lived there before the trace.

A trace begins in the middle of a process. What the counters were then is known from its end: the blocks and
segments that the snapshot lists, less what the trace changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.ranges import Range, Ranges
from memexport.analysis.text import human_bytes
from memexport.model import Column, Device, StringTable
from memexport.sources._cuda_snapshot_actions import GROWS, MOVES, SHRINKS, SIGNS, Action
from memexport.sources._snapshot import Columns, Snapshot

COUNTERS: Final = ("allocated", "active", "reserved")

_PENDING: Final = ("active_pending_free", "active_awaiting_free")


@dataclass(frozen=True)
class Known:
    """The segments and blocks of one device when the snapshot was taken.

    Attributes:
        segments: `SEGMENT_COLUMNS`.
        allocated: of the blocks in use: `address`, `size` as requested, `stream`, `stack`.
        pending_bytes: of the blocks that were freed, but wait for a stream.
        unrequested: how many blocks in use do not say what was requested; their whole size counts.
    """

    segments: Columns
    allocated: Columns
    pending_bytes: int
    unrequested: int

    def counters(self) -> dict[str, int]:
        """The counters, in bytes."""
        allocated = int(self.allocated["size"].sum())
        reserved = int(self.segments["total_size"].sum())
        return {"allocated": allocated, "active": allocated + self.pending_bytes, "reserved": reserved}


def known_of(snapshot: Snapshot, device: int, strings: StringTable) -> Known:
    """What the snapshot lists of this device."""
    segments, blocks = snapshot.segments, snapshot.blocks
    here = segments["device"] == device
    at = blocks["segment"]
    requested = np.where(blocks["requested_size"] < 0, blocks["size"], blocks["requested_size"])
    in_use = here[at] & (blocks["state"] == (strings.find("active_allocated") or -1))
    pending = here[at] & np.isin(blocks["state"], [strings.find(state) or -1 for state in _PENDING])
    return Known(
        segments={name: column[here] for name, column in segments.items()},
        allocated={
            "address": blocks["address"][in_use],
            "size": requested[in_use],
            "stream": segments["stream"][at[in_use]],
            "stack": blocks["stack"][in_use],
        },
        pending_bytes=int(requested[pending].sum()),
        unrequested=int(np.count_nonzero(in_use & (blocks["requested_size"] < 0))),
    )


class DeviceTrace:
    """What happened on one device.

    Attributes:
        start: the counters before the trace.
        after: the counters after each entry, by name.
        before: what was allocated before the trace: `address`, `size`, `stream`, `stack`. Of what only its
            release tells, the stack is null: that one is of who gave it back.
        warnings: what does not fit together, in order.
    """

    def __init__(self, device: Device, trace: Columns, known: Known) -> None:
        """`trace` has `TRACE_COLUMNS`, with an `Action` as "action"; `known` is the state at its end."""
        self._name = str(device)
        self._trace = trace
        self._known = known
        self.start: dict[str, int] = {}
        self.after: dict[str, Column] = {}
        self.warnings: list[str] = []
        self._count()
        self.before = self._pair()

    def segments_before(self) -> list[Range]:
        """The segments that the trace began with, by address: those at its end, with the trace undone."""
        mapped = Ranges()
        rows = ("address", "total_size", "stream", "stack")
        for values in zip(*(self._known.segments[name].tolist() for name in rows), strict=True):
            mapped.add(Range(*values))
        action = self._trace["action"]
        changes = np.flatnonzero(np.isin(action, (*GROWS, *SHRINKS)))[::-1]
        columns = [self._trace[name][changes].tolist() for name in ("address", "size", "stream", "stack")]
        for code, address, size, stream, stack in zip(action[changes].tolist(), *columns, strict=True):
            if code in GROWS:
                mapped.cut(address, size)
            else:
                mapped.add(Range(address, size, stream, stack))
        return list(mapped)

    def _count(self) -> None:
        end = self._known.counters()
        raised = []
        for name in COUNTERS:
            changes = SIGNS[name][self._trace["action"]] * self._trace["size"]
            total = np.cumsum(changes)
            start = end[name] - (int(total[-1]) if len(total) else 0)
            # A counter is never negative, so the deepest fall says how much there was at least.
            least = -min(0, int(total.min(initial=0)))
            if start < least:
                raised.append(f"{name} begin at {human_bytes(start)} (taken as {human_bytes(least)})")
                start = least
            self.start[name] = start
            total += start
            self.after[name] = total
        if raised:
            self._warn(
                f"the trace and the segments contradict each other: they would let {', '.join(raised)}"
            )

    def _pair(self) -> Columns:
        """What lived before, from allocations and releases sorted by address, then by time."""
        action, address = self._trace["action"], self._trace["address"]
        moves = np.flatnonzero(np.isin(action, MOVES) & (address != 0))
        order = moves[np.argsort(address[moves], kind="stable")]
        sorted_address, is_alloc = address[order], action[order] == Action.ALLOC
        repeats = sorted_address[1:] == sorted_address[:-1]
        first, last = np.concatenate(([True], ~repeats)), np.concatenate((~repeats, [True]))
        first, last = first[: len(order)], last[: len(order)]
        after_alloc = np.concatenate(([False], is_alloc[:-1]))[: len(order)] & ~first
        freed = np.sort(order[first & ~is_alloc])
        self._warn_of_pairs(
            unknown=int(np.count_nonzero(~is_alloc & ~after_alloc)),
            frees=int(np.count_nonzero(~is_alloc)),
            doubled=int(np.count_nonzero(is_alloc & after_alloc)),
        )
        self._compare_ends(sorted_address[last & is_alloc], sorted_address[last & ~is_alloc])
        untouched = ~np.isin(self._known.allocated["address"], sorted_address[first])
        before = {name: column[untouched] for name, column in self._known.allocated.items()}
        released = {name: self._trace[name][freed] for name in before}
        released["stack"] = np.zeros(len(freed), np.uint32)
        return {name: np.concatenate((before[name], released[name])) for name in before}

    def _warn_of_pairs(self, unknown: int, frees: int, doubled: int) -> None:
        if unknown:
            self._warn(
                f"{unknown} of {frees} frees are of memory whose allocation the trace does not have: it "
                "began later, or lost its oldest entries (a larger max_entries of "
                "torch.cuda.memory._record_memory_history keeps more)"
            )
        if doubled:
            self._warn(f"{doubled} allocations are at addresses that had not been freed")

    def _compare_ends(self, live: Column, freed: Column) -> None:
        listed = self._known.allocated["address"]
        missing = int(np.count_nonzero(~np.isin(live, listed)))
        if missing:
            self._warn(f"{missing} allocations are live when the trace ends, but not in the segments")
        undead = int(np.count_nonzero(np.isin(listed, freed)))
        if undead:
            self._warn(f"{undead} blocks are allocated in the segments, but freed in the trace")

    def _warn(self, what: str) -> None:
        self.warnings.append(f"{self._name}: {what}")


def size_warnings(devices: Iterator[tuple[Device, Known]]) -> Iterator[str]:
    """Which devices' blocks do not say what was requested."""
    for device, known in devices:
        if known.unrequested:
            yield (
                f"{device}: {known.unrequested} blocks do not say how much was requested; "
                "their rounded size counts"
            )
