"""Folds the events of one device of one process into what its metrics show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.analysis.live import LiveSet
from memexport.analysis.place_fold import COUNTERS
from memexport.exporters._otel_histogram import Tally
from memexport.exporters._otel_modules import CATEGORIES, ModuleSlots
from memexport.exporters._otel_snapshot import Ints
from memexport.model import Category, Column, EventBatch, EventKind

_UNATTRIBUTED: Final = Category.UNATTRIBUTED - 1
_NO_MODULE: Final = np.zeros(1, np.uint32)
_REMEMBERED: Final = ("size_bytes", "category", "module")


def _category_columns() -> Ints:
    """The index in `CATEGORIES` of each number; one that explains nothing, or is new, is unattributed."""
    columns = np.full(256, _UNATTRIBUTED)
    columns[1 : len(CATEGORIES) + 1] = np.arange(len(CATEGORIES))
    return columns


_CATEGORY_COLUMN: Final = _category_columns()


@dataclass(frozen=True)
class Steps:
    """The training steps that end in a batch, and where recording went on after a pause.

    Attributes:
        positions: of their SPANs, ascending.
        durations_ns: how long they took; −1 where it is a pause that ends, and none of them.
        in_pause: of which it is not known what was allocated in them.
    """

    positions: Ints
    durations_ns: Ints
    in_pause: npt.NDArray[np.bool_]


class Level:
    """A counter's last known value, and the highest since `restart`; −1 while nothing is known."""

    def __init__(self) -> None:
        self.now = -1
        self.peak = -1

    def add(self, values: Column) -> None:
        """Take the values after each event; −1 where one is not known."""
        highest = int(values.max(initial=-1))
        if highest < 0:
            return
        self.peak = max(self.peak, highest)
        last = int(values[-1])
        self.now = last if last >= 0 else int(values[values >= 0][-1])

    def restart(self) -> None:
        """Forget the peak; what is allocated now still is."""
        self.peak = self.now


class DeviceFold:
    """One device of one process.

    Attributes:
        label: the value of its metrics' attribute `memexport.device`.
        levels: its counters by name, since the last collection.
        operators: how many there were.
        ooms: how many requests for memory are known to have failed.
        sizes: of the allocations of operators since the last collection, by phase.
        step_seconds, step_peaks: of the steps that ended since then and in which it worked.
    """

    def __init__(self, label: str, modules: ModuleSlots) -> None:
        self.label = label
        self.modules = modules
        self.levels = {name: Level() for name in COUNTERS}
        self.operators = 0
        self.ooms = 0
        self.sizes: dict[int, Tally] = {}
        self.step_seconds = Tally()
        self.step_peaks = Tally()
        self._live = LiveSet(_REMEMBERED)
        self._step = Level()
        self._worked = False
        self._is_used = False

    def add(self, batch: EventBatch, positions: Column, first: int, steps: Steps) -> None:
        """Take the events at these positions, all of this device, markers left out.

        Allocations before the position `first`, and those that no operator made, only register what lived
        already.
        """
        kind = batch.kind[positions]
        for name, level in self.levels.items():
            level.add(getattr(batch, f"{name}_bytes")[positions])
        self.operators += int(np.count_nonzero(kind == EventKind.OPERATOR))
        self._add_sizes(batch, positions[kind == EventKind.ALLOCATION], first)
        self._add_steps(positions, batch.allocated_bytes[positions], steps)
        self._live.add(batch, positions)

    def pass_over(self, steps: Steps) -> None:
        """Take the steps that end in a batch without an event of this device."""
        nothing = np.empty(0, np.int64)
        self._add_steps(nothing, nothing, steps)

    def table(self) -> Ints:
        """Live bytes, flat: of the modules in slot order, each with a column for each of `CATEGORIES`.

        Their sum is the allocated bytes where those are known: what no allocation explains is unattributed,
        and less than nothing where more is live than the device counts.
        """
        live = self._live.live()
        sizes = np.maximum(live.columns["size_bytes"], 0)
        slots = self.modules.of(live.columns["module"], sizes)
        cells = slots * len(CATEGORIES) + _CATEGORY_COLUMN[live.columns["category"]]
        rest = self.levels["allocated"].now - int(sizes.sum()) if self.levels["allocated"].now >= 0 else 0
        cell_of_rest = 0
        if rest:
            slot = self.modules.of(_NO_MODULE, np.array([abs(rest)]))
            cell_of_rest = int(slot[0]) * len(CATEGORIES) + _UNATTRIBUTED
        # Sums of floats are exact up to 2^53, which is eight petabytes.
        table = np.bincount(cells, sizes, len(self.modules.names) * len(CATEGORIES)).astype(np.int64)
        table[cell_of_rest] += rest
        return table

    def restart(self) -> None:
        """Begin the next interval between collections."""
        for level in self.levels.values():
            level.restart()
        self.sizes = {}
        self.step_seconds, self.step_peaks = Tally(), Tally()

    def _add_sizes(self, batch: EventBatch, allocations: Column, first: int) -> None:
        made = (allocations >= first) & (batch.name[allocations] != 0) & (batch.size_bytes[allocations] >= 0)
        allocations = allocations[made]
        sizes, phases = batch.size_bytes[allocations], batch.phase[allocations]
        for phase in np.flatnonzero(np.bincount(phases)).tolist():
            self.sizes.setdefault(phase, Tally()).add(sizes[phases == phase])

    def _add_steps(self, positions: Column, allocated: Column, steps: Steps) -> None:
        begin = 0
        ends = np.searchsorted(positions, steps.positions).tolist()
        steps_ended = zip(ends, steps.durations_ns.tolist(), steps.in_pause.tolist(), strict=True)
        for end, duration_ns, in_pause in steps_ended:
            self._go_on(allocated[begin:end])
            if duration_ns >= 0:
                self._end_step(duration_ns, in_pause=in_pause)
            self._step.restart()
            self._worked = False
            begin = end
        self._go_on(allocated[begin:])

    def _go_on(self, allocated: Column) -> None:
        self._worked |= len(allocated) > 0
        self._is_used |= self._worked
        self._step.add(allocated)

    def _end_step(self, duration_ns: int, *, in_pause: bool) -> None:
        # Whether it works in a pause nobody sees: it is taken to do so if it did before.
        if self._worked or (in_pause and self._is_used):
            self.step_seconds.add(np.array([duration_ns / 1e9]))
            if self._step.peak >= 0 and not in_pause:
                self.step_peaks.add(np.array([self._step.peak]))


class Cells:
    """The cells of a device's table that ever held bytes, each with the place of its series.

    Args:
        place: makes the series of a cell; its place in the metric.
    """

    def __init__(self, place: Callable[[int], int]) -> None:
        self._place = place
        self._known = np.empty(0, bool)
        self._cells = np.empty(0, np.int64)
        self.places = np.empty(0, np.int64)

    def values(self, table: Ints) -> Ints:
        """Their bytes, in the order of `places`."""
        if len(self._known) < len(table):
            self._known = np.concatenate((self._known, np.zeros(len(table) - len(self._known), bool)))
        new = np.flatnonzero((table != 0) & ~self._known)
        if len(new):
            self._known[new] = True
            self._cells = np.concatenate((self._cells, new))
            self.places = np.concatenate((self.places, [self._place(cell) for cell in new.tolist()]))
        values: Ints = table[self._cells]
        return values
