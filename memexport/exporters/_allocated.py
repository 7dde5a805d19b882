"""What was allocated over a whole recording, by where in the program: released meanwhile or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from memexport.analysis.live import NEVER, Allocations, Lifetimes
from memexport.exporters._flamegraph import sums
from memexport.model import Column, EventBatch, EventKind

Key = tuple[int, ...]

_AT_ONCE: Final = 1 << 16
"""Adding up few at a time takes longer."""


class Allocated:
    """Adds up the allocations of one place (a device of a rank), batch by batch.

    Each counts once, as what was last said of it: an ALLOCATION of the same size at an address that is live
    says anew what is there. What lived before the recording counts too. Memory grows with the number of
    places in the program, and with what is live at once.

    Args:
        columns: what says where in the program an allocation was made.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._sums: dict[Key, tuple[int, int]] = {}
        self._ended: list[Allocations] = []
        self._waiting = 0
        self._lifetimes: Lifetimes | None = None

    def add(self, batch: EventBatch, lifetimes: Lifetimes) -> None:
        """Take what lived there during one more batch."""
        carried = _is_over(batch, lifetimes.carried, lifetimes.carried_end)
        born = _is_over(batch, lifetimes.born, lifetimes.born_end)
        for ended in (lifetimes.carried.take(carried), lifetimes.born.take(born)):
            if len(ended):
                self._ended.append(ended)
                self._waiting += len(ended)
        self._lifetimes = lifetimes
        if self._waiting >= _AT_ONCE:
            self._add_up()

    def result(self) -> dict[Key, tuple[int, int]]:
        """Bytes and number of allocations, by the values of `columns`; nothing can be added after it."""
        if self._lifetimes is not None and len(survivors := self._lifetimes.survivors()):
            self._ended.append(survivors)
        self._add_up()
        return self._sums

    def _add_up(self) -> None:
        ended, self._ended, self._waiting = self._ended, [], 0
        if not ended:
            return
        names = (*self._columns, "size_bytes")
        columns = {name: np.concatenate([some.columns[name] for some in ended]) for name in names}
        whole = Allocations(np.concatenate([some.address for some in ended]), columns)
        for values, size_bytes, count in sums(whole, self._columns):
            key = tuple(values)
            had_bytes, had_count = self._sums.get(key, (0, 0))
            self._sums[key] = had_bytes + size_bytes, had_count + count


def _is_over(batch: EventBatch, some: Allocations, end: Column) -> Column:
    """Which of them ended in the batch, but for those of which another ALLOCATION speaks from then on."""
    over: Column = end != NEVER
    ends = end[over]
    anew = batch.kind[ends] == EventKind.ALLOCATION
    over[over] = ~(anew & (batch.size_bytes[ends] == some.columns["size_bytes"][over]))
    return over
