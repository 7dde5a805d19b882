"""Requests for memory that failed: what was asked for, by whom, and who held the memory then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.breakdown import ModuleBytes, OperatorBytes, by_category, by_module, by_operator
from memexport.analysis.frames import parse_frame
from memexport.analysis.live import Lifetimes
from memexport.analysis.stacks import StackBytes, Stacks, stack_texts
from memexport.model import Column, EventBatch, EventKind, Phase, Tables

MAX_FAILED_REQUESTS: Final = 20
"""How many requests that failed a place lists."""

_LISTED: Final = 20
"""Modules, operators and stacks of each."""

_KNOWN_PHASES: Final = frozenset(Phase) - {Phase.UNKNOWN}

LastKnown = Callable[[str, Column], int | None]
"""Of a counter: its latest value among these of the batch, or before them; None if there is none."""


@dataclass(frozen=True)
class FailedRequest:
    """A request for memory that failed.

    Attributes:
        bytes: what was asked for; None if that is not known.
        device_free_bytes: what the device itself had left, outside of the allocator; None if that is not
            known.
        stack: the code that asked, outermost frame first; None if that is not known.
        operator, module, phase: who asked; None for what is not known.
        allocated_bytes, reserved_bytes: the device's counters then; None for one that is not known.
        fragmentation_bytes: what was reserved but not active then; None where a counter is not known.
        categories: bytes that were live then by category, largest first; with `modules`, `operators` and
            `stacks` (20 at most) as in a device's summary at its peak.
    """

    bytes: int | None
    device_free_bytes: int | None
    time_unix_ns: int
    stack: tuple[str, ...] | None
    operator: str | None
    module: str | None
    phase: str | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    fragmentation_bytes: int | None
    categories: Mapping[str, int]
    modules: tuple[ModuleBytes, ...]
    operators: tuple[OperatorBytes, ...]
    stacks: tuple[StackBytes, ...]


class FailedRequests:
    """Collects the first `MAX_FAILED_REQUESTS` of one place.

    A request is a MARKER "oom", after a SAMPLE "device_free" if that is known. An operator that asked is the
    innermost frame of its stack.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._device_free_bytes: int | None = None
        self._found: list[Callable[[], FailedRequest]] = []

    def add(self, batch: EventBatch, positions: Column, lifetimes: Lifetimes, last: LastKnown) -> None:
        """Take the events at these positions, all of the place."""
        find = self._tables.strings.find
        oom, device_free = find("oom"), find("device_free")
        if oom is None or len(self._found) == MAX_FAILED_REQUESTS:
            return
        kind, name = batch.kind[positions], batch.name[positions]
        of_interest = (kind == EventKind.MARKER) & (name == oom)
        if device_free is not None:
            of_interest |= (kind == EventKind.SAMPLE) & (name == device_free)
        for index in np.flatnonzero(of_interest).tolist():
            size = int(batch.size_bytes[positions[index]])
            if batch.kind[positions[index]] == EventKind.SAMPLE:
                self._device_free_bytes = size if size >= 0 else None
            elif len(self._found) < MAX_FAILED_REQUESTS:
                self._add_one(batch, positions[: index + 1], lifetimes, last)

    def all(self) -> tuple[FailedRequest, ...]:
        """In order. Worked out when asked for."""
        return tuple(make() for make in self._found)

    def _add_one(self, batch: EventBatch, until: Column, lifetimes: Lifetimes, last: LastKnown) -> None:
        event, free, tables = int(until[-1]), self._device_free_bytes, self._tables
        self._device_free_bytes = None
        known = {n: last(n, getattr(batch, f"{n}_bytes")[until]) for n in ("allocated", "active", "reserved")}
        # The batch itself is not kept.
        size, phase = int(batch.size_bytes[event]), int(batch.phase[event])
        time_unix_ns, module = int(batch.time_unix_ns[event]), int(batch.module[event])
        code, operator = _split(stack_texts(int(batch.stack[event]), tables))

        def make() -> FailedRequest:
            live, counter = lifetimes.live_at(event), known["allocated"]
            return FailedRequest(
                bytes=size if size >= 0 else None,
                device_free_bytes=free,
                time_unix_ns=time_unix_ns,
                stack=code,
                operator=operator,
                module=tables.strings.get(module),
                phase=Phase(phase).name.lower() if phase in _KNOWN_PHASES else None,
                allocated_bytes=counter,
                reserved_bytes=known["reserved"],
                fragmentation_bytes=_unused(known["active"], known["reserved"]),
                categories=by_category(live, counter),
                modules=by_module(live, counter, tables.strings)[:_LISTED],
                operators=by_operator(live, counter, tables.strings)[:_LISTED],
                stacks=Stacks(live, counter, tables).whole(_LISTED),
            )

        self._found.append(make)


def _split(stack: tuple[str, ...] | None) -> tuple[tuple[str, ...] | None, str | None]:
    """The code and the operator: an innermost frame that names no file is what the code called."""
    if not stack or parse_frame(stack[-1]).file:
        return stack, None
    return stack[:-1] or None, stack[-1]


def _unused(active: int | None, reserved: int | None) -> int | None:
    unused = -1 if active is None or reserved is None else reserved - active
    return unused if unused >= 0 else None
