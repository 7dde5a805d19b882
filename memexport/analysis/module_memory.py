"""What each module does to memory: before, at the peak of, and after its forwards, backwards, recomputations.

A forward or recomputation is a module's SPAN. Its backward has no event of its own: it runs from the first to
the last BACKWARD event of the module and those below it, while the autograd engine is running; so does a
recomputation of all of it. Two calls in one forward have one backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.category_bytes import ByteChanges, CategoryBytes
from memexport.analysis.maxima import first_maxima
from memexport.analysis.module_passes import ModuleTree, Passes, passes_in
from memexport.analysis.places import Place, place_names, split_by_place
from memexport.model import Category, Column, EventBatch, EventKind, Phase, RecordingInfo, Tables

MOST_EVENTS: Final = 1 << 20
"""A pass of more events than this is seen from the oldest of them on."""


@dataclass(frozen=True)
class ModulePass:
    """One forward, backward or recomputation of a module, on one device.

    Attributes:
        step: of its end; −1 if there are no steps.
        before: bytes by category when it began, without those that are 0.
        peak: at the moment of the most bytes until it ended.
        after: when it ended.
        activation_bytes: what it made for a backward to come, with the modules below it.
        input_bytes: the storages of the tensors that it was called with, on all devices together; None for a
            backward, and where that is not known.
        output_bytes: of those that it returned, likewise.
    """

    step: int
    before: Mapping[str, int]
    peak: Mapping[str, int]
    after: Mapping[str, int]
    activation_bytes: int
    input_bytes: int | None
    output_bytes: int | None

    @property
    def peak_bytes(self) -> int:
        """Of all categories."""
        return sum(self.peak.values())


@dataclass(frozen=True)
class ModuleMemory:
    """All passes of one kind of one module on one device.

    Attributes:
        class_name: None for a module of which no call was seen to end.
        passes: how many there were.
        parameter_bytes: of the parameters on this device, with those of the modules below it. What several
            modules share is the first one's.
        buffer_bytes: likewise.
        highest: the first of the passes with the most bytes at their peak.
        last: the pass that ended last.
    """

    module: str
    class_name: str | None
    device: str
    phase: Phase
    passes: int
    parameter_bytes: int
    buffer_bytes: int
    highest: ModulePass
    last: ModulePass


class ModuleMemoryFold:
    """Takes the batches of a recording in order; `result` may be asked for at any time, and adding go on.

    Memory grows with the number of modules, what is live at once, and the longest forward or backward (up to
    `MOST_EVENTS`), not with the number of steps. Calls must come from one thread at a time.
    """

    def __init__(self, info: RecordingInfo, tables: Tables) -> None:
        self._info = info
        self._tables = tables
        self._ranks: dict[int, _Rank] = {}

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        for rank in np.unique(batch.rank).tolist():
            of_rank = batch if (batch.rank == rank).all() else batch.select(batch.rank == rank)
            self._ranks.setdefault(rank, _Rank()).add(of_rank)

    def result(self) -> tuple[ModuleMemory, ...]:
        """Every module, device and phase that there was, in the order in which they were first over.

        What still runs is left out.
        """
        places = [place for rank in self._ranks.values() for place in rank.places]
        names = place_names(places, self._info)
        return tuple(row for rank in self._ranks.values() for row in rank.result(names, self._tables))


@dataclass
class _Row:
    """The passes of one (place, module, phase)."""

    passes: int
    highest: ModulePass
    last: ModulePass


class _Rank:
    """One rank: its events since nothing was running, and what came of those before."""

    def __init__(self) -> None:
        self.places: dict[Place, CategoryBytes] = {}
        self._waiting: list[EventBatch] = []
        self._tree = ModuleTree()
        self._rows: dict[tuple[Place, int, int], _Row] = {}
        self._own_bytes: dict[tuple[Place, Category], dict[int, int]] = {}

    def add(self, batch: EventBatch) -> None:
        idle = np.flatnonzero(_nothing_runs(batch))
        cut = int(idle[-1]) + 1 if len(idle) else 0
        if cut:
            self._waiting.append(batch.select(slice(0, cut)))
            self._read_waiting()
        self._waiting.append(batch.select(slice(cut, len(batch))))
        if sum(map(len, self._waiting)) > MOST_EVENTS:
            self._read_waiting()

    def result(self, names: Mapping[Place, str], tables: Tables) -> Iterator[ModuleMemory]:
        self._read_waiting()
        for (place, module, phase), row in self._rows.items():
            yield ModuleMemory(
                module=tables.strings.get(module) or "",
                class_name=tables.strings.get(self._tree.class_names.get(module, 0)),
                device=names[place],
                phase=Phase(phase),
                passes=row.passes,
                parameter_bytes=self._below(place, Category.PARAMETER, module, tables),
                buffer_bytes=self._below(place, Category.BUFFER, module, tables),
                highest=row.highest,
                last=row.last,
            )

    def _below(self, place: Place, category: Category, module: int, tables: Tables) -> int:
        own = self._own_bytes.get((place, category), {})
        return sum(size for owner, size in own.items() if module in self._tree.chain(owner, tables.strings))

    def _read_waiting(self) -> None:
        events = EventBatch.concat(self._waiting)
        self._waiting = []
        passes = passes_in(events, self._tree)
        for place, positions in split_by_place(events):
            here = self.places.setdefault(place, CategoryBytes())
            changes = here.add(events, positions)
            self._note_parameters(place, here, changes)
            if len(passes):
                self._note(place, events, passes, changes)

    def _note_parameters(self, place: Place, here: CategoryBytes, changes: ByteChanges) -> None:
        for category in (Category.PARAMETER, Category.BUFFER):
            if (changes.size_bytes[changes.category == category] > 0).any():
                self._own_bytes[place, category] = here.by_module(category)

    def _note(self, place: Place, events: EventBatch, passes: Passes, changes: ByteChanges) -> None:
        before, peak, after = (
            changes.after(passes.begin - 1),
            _peaks(changes, passes),
            changes.after(passes.end),
        )
        made = _activations_made(events, place)
        activations = made[passes.end + 1] - made[passes.begin]
        steps, took, gave = (
            getattr(events, name)[passes.end].tolist() for name in ("step", "input_bytes", "output_bytes")
        )
        keys = zip(passes.module.tolist(), passes.phase.tolist(), strict=True)
        for index, (module, phase) in enumerate(keys):
            one = ModulePass(
                steps[index],
                _named(before[index]),
                _named(peak[index]),
                _named(after[index]),
                int(activations[index]),
                _known(took[index]),
                _known(gave[index]),
            )
            row = self._rows.get((place, module, phase))
            if row is None:
                self._rows[place, module, phase] = _Row(1, one, one)
                continue
            row.passes += 1
            row.last = one
            if one.peak_bytes > row.highest.peak_bytes:
                row.highest = one


def _known(size_bytes: int) -> int | None:
    return None if size_bytes < 0 else size_bytes


def _nothing_runs(batch: EventBatch) -> Column:
    """Operators that no module and no backward called."""
    in_backward = (batch.phase == Phase.BACKWARD) | (batch.phase == Phase.RECOMPUTE)
    idle: Column = (batch.kind == EventKind.OPERATOR) & (batch.module == 0) & ~in_backward
    return idle


def _peaks(changes: ByteChanges, passes: Passes) -> Column:
    """Bytes by category at the first moment of the most bytes in each pass, its begin included."""
    moments = np.unique(np.concatenate((changes.position, passes.begin - 1)))
    begins = np.searchsorted(moments, passes.begin - 1)
    ends = np.searchsorted(moments, passes.end, "right")
    return changes.after(moments[first_maxima(changes.totals_after(moments), begins, ends)])


def _activations_made(events: EventBatch, place: Place) -> Column:
    """Before each event, and after all: the bytes of activations that were allocated until then."""
    made = (events.kind == EventKind.ALLOCATION) & (events.category == Category.ACTIVATION)
    made = made & (events.device == place.device)
    sums: Column = np.concatenate(([0], np.cumsum(np.where(made, np.maximum(events.size_bytes, 0), 0))))
    return sums


def _named(row: Column) -> dict[str, int]:
    known = len(Category)
    values = enumerate(row[:known].tolist())
    return {Category(category).name.lower(): size for category, size in values if size}
