"""What lives at the end of a stream of batches, device by device."""

from __future__ import annotations

from typing import Final, NamedTuple

from memexport.analysis.breakdown import (
    ModuleBytes,
    OperatorBytes,
    by_category,
    by_module,
    by_operator,
)
from memexport.analysis.live import Allocations, LiveSet
from memexport.analysis.places import split_by_place
from memexport.analysis.stacks import StackBytes, Stacks
from memexport.model import EventBatch, EventKind, Tables

_COUNTERS: Final = ("allocated", "active", "reserved")
_LISTED: Final = 20


class Counters(NamedTuple):
    """A device's, in bytes; None for one that is not known."""

    allocated: int | None = None
    active: int | None = None
    reserved: int | None = None


class Held(NamedTuple):
    """Who holds the memory of a device, largest first: all categories, 20 of the others."""

    categories: dict[str, int]
    modules: tuple[ModuleBytes, ...]
    operators: tuple[OperatorBytes, ...]
    stacks: tuple[StackBytes, ...]


UNKNOWN: Final = Counters()
NOBODY: Final = Held({}, (), (), ())


class LiveNow:
    """Follows the allocations of one process; `counters` and `held` may be asked for when all is added."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._live: dict[int, LiveSet] = {}
        self._counters: dict[int, Counters] = {}

    def add(self, batch: EventBatch) -> None:
        """Take the next batch."""
        for place, positions in split_by_place(batch):
            self._live.setdefault(place.device, LiveSet()).add(batch, positions)
            before = self._counters.get(place.device, UNKNOWN)
            # The MARKER "peak" stands after everything else, and repeats what was.
            counted = positions[batch.kind[positions] != EventKind.MARKER]
            known = (getattr(batch, f"{name}_bytes")[counted] for name in _COUNTERS)
            latest = (values[values >= 0][-1:].tolist() for values in known)
            self._counters[place.device] = Counters(
                *(new[0] if new else old for new, old in zip(latest, before, strict=True))
            )

    def devices(self) -> list[int]:
        """Those that anything is known of."""
        return sorted(self._live)

    def counters(self, device: int) -> Counters:
        """The last ones."""
        return self._counters.get(device, UNKNOWN)

    def held(self, device: int) -> Held:
        """Who holds what; what the counter has beyond the allocations is unattributed."""
        live = self._live[device].live() if device in self._live else Allocations.none()
        counter, strings = self.counters(device).allocated, self._tables.strings
        return Held(
            by_category(live, counter),
            by_module(live, counter, strings)[:_LISTED],
            by_operator(live, counter, strings)[:_LISTED],
            Stacks(live, counter, self._tables).own_code(_LISTED),
        )
