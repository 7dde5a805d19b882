"""When modules run: their calls as recorded, and their backwards as the operators in them say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memexport.model import Column, EventBatch, EventKind, Phase, StringTable


@dataclass(frozen=True)
class Passes:
    """Passes of modules, as columns, ordered by their ends.

    Attributes:
        module: string ids.
        phase: FORWARD, BACKWARD or RECOMPUTE.
        begin: the position of the first event in it.
        end: the position of its last event, its SPAN included.
    """

    module: Column
    phase: Column
    begin: Column
    end: Column

    def __len__(self) -> int:
        return len(self.module)


class ModuleTree:
    """Which module calls which, learnt from calls that contain each other.

    Attributes:
        class_names: string ids of the classes of modules, by module.
    """

    def __init__(self) -> None:
        self.class_names: dict[int, int] = {}
        self._callers: dict[int, int | None] = {}

    def learn(self, modules: list[int], class_names: list[int], begins: list[int]) -> None:
        """Take calls in the order of their ends."""
        self.class_names.update(zip(modules, class_names, strict=True))
        if self._callers.keys() >= set(modules):
            return
        inner: list[int] = []
        for index, begin in enumerate(begins):
            while inner and begins[inner[-1]] >= begin:
                self._callers.setdefault(modules[inner.pop()], modules[index])
            inner.append(index)
        for index in inner:
            self._callers.setdefault(modules[index], None)

    def callers(self, module: int) -> Iterator[int]:
        """The module itself, its caller, and so on to the root."""
        seen = set()
        known: int | None = module
        while known is not None and known not in seen:
            seen.add(known)
            yield known
            known = self._callers.get(known)

    def chain(self, module: int, strings: StringTable) -> set[int]:
        """The same for one that may never be called: it is below whom its path names, else the root."""
        path = strings.get(module) or ""
        while module not in self._callers and "." in path:
            path = path.rpartition(".")[0]
            module = strings.find(path) or 0
        if module not in self._callers:
            roots = [root for root, caller in self._callers.items() if caller is None]
            module = roots[0] if roots else module
        return set(self.callers(module))


def passes_in(events: EventBatch, tree: ModuleTree) -> Passes:
    """The passes that end among these events. What began before them begins with the first."""
    ended = np.maximum.accumulate(events.time_unix_ns + np.maximum(events.duration_ns, 0))
    spans = np.flatnonzero((events.kind == EventKind.SPAN) & (events.module != 0))
    begin_times = events.time_unix_ns[spans]
    forward = events.phase[spans] == Phase.FORWARD
    tree.learn(
        events.module[spans][forward].tolist(),
        events.name[spans][forward].tolist(),
        begin_times[forward].tolist(),
    )
    calls = Passes(
        events.module[spans], events.phase[spans], np.searchsorted(ended, begin_times, "right"), spans
    )
    return _by_end(calls, _backwards(events, calls, tree))


def _by_end(calls: Passes, backwards: Passes) -> Passes:
    module, phase, begin, end = (
        np.concatenate((getattr(calls, name), getattr(backwards, name)))
        for name in ("module", "phase", "begin", "end")
    )
    order = np.argsort(end, kind="stable")
    return Passes(module[order], phase[order], begin[order], end[order])


def _backwards(events: EventBatch, calls: Passes, tree: ModuleTree) -> Passes:
    """A pass for each module of each backward, from its first to its last event."""
    works = np.flatnonzero((events.kind == EventKind.OPERATOR) | (events.kind == EventKind.ALLOCATION))
    phase = events.phase[works]
    in_backward = (phase == Phase.BACKWARD) | (phase == Phase.RECOMPUTE)
    backward_number = np.cumsum(np.diff(in_backward, prepend=False))
    found: dict[tuple[int, int], tuple[int, int]] = {}

    def extend(number: int, module: int, begin: int, end: int) -> None:
        for caller in tree.callers(module):
            known = found.get((number, caller), (begin, end))
            found[number, caller] = min(begin, known[0]), max(end, known[1])

    own = works[(phase == Phase.BACKWARD) & (events.module[works] != 0)]
    numbers = backward_number[np.searchsorted(works, own)]
    for key, begin, end in _ranges(numbers, events.module[own], own):
        extend(*key, begin, end)
    for index in _outermost_recomputed(calls):
        begin, end = int(calls.begin[index]), int(calls.end[index])
        place = min(int(np.searchsorted(works, begin)), len(works) - 1)
        if place >= 0 and in_backward[place]:
            extend(int(backward_number[place]), int(calls.module[index]), begin, end)
    modules = np.array([module for _, module in found], np.uint32)
    bounds = np.array(list(found.values()), np.int64).reshape(-1, 2)
    return Passes(modules, np.full(len(modules), Phase.BACKWARD, np.uint8), bounds[:, 0], bounds[:, 1])


def _ranges(
    numbers: Column, modules: Column, positions: Column
) -> Iterator[tuple[tuple[int, int], int, int]]:
    """The first and last position of each pair (number, module)."""
    order = np.lexsort((positions, modules, numbers))
    numbers, modules, positions = numbers[order], modules[order], positions[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (numbers[1:] != numbers[:-1]) | (modules[1:] != modules[:-1])
    firsts = np.flatnonzero(new)
    lasts = np.append(firsts[1:], len(order)) - 1 if len(firsts) else firsts
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield (int(numbers[first]), int(modules[first])), int(positions[first]), int(positions[last])


def _outermost_recomputed(calls: Passes) -> list[int]:
    """Recomputed calls that no other recomputed call contains."""
    recomputed = np.flatnonzero(calls.phase == Phase.RECOMPUTE)
    outermost: list[int] = []
    earliest = np.iinfo(np.int64).max
    for index in recomputed[::-1].tolist():
        if int(calls.begin[index]) < earliest:
            outermost.append(index)
            earliest = int(calls.begin[index])
    return outermost
