"""Whose code holds the bytes: what is live by the stack that allocated it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.frames import Frame, own_code, parse_frame
from memexport.analysis.live import Allocations
from memexport.model import Tables

_SHOWN_FRAMES: Final = 3


@dataclass(frozen=True)
class StackBytes:
    """What one stack holds.

    Attributes:
        stack: the frames, outermost first; None for all that no stack is known of.
        bytes: how much; that of no stack includes what no allocation explains.
        count: how many allocations.
    """

    stack: tuple[str, ...] | None
    bytes: int
    count: int


class Stacks:
    """What is live, by stack; nothing where no stack is known. Stacks without bytes are left out.

    Args:
        live: the allocations, with their sizes and stacks.
        counter: what the device says is allocated; what it has beyond the allocations is of no stack.
        tables: of the recording.
    """

    def __init__(self, live: Allocations, counter: int | None, tables: Tables) -> None:
        self._tables = tables
        self._frames: dict[int, Frame] = {}
        self._held: dict[int, tuple[int, int]] = {}
        ids, index = np.unique(live.columns["stack"], return_inverse=True)
        if not ids.any():
            return
        sizes = np.maximum(live.columns["size_bytes"], 0)
        totals = np.zeros(len(ids), np.int64)
        np.add.at(totals, index, sizes)
        counts = np.bincount(index, minlength=len(ids)).tolist()
        rows = zip(ids.tolist(), totals.tolist(), counts, strict=True)
        self._held.update((stack_id, (size, count)) for stack_id, size, count in rows)
        unexplained = 0 if counter is None else max(0, counter - int(sizes.sum()))
        if unexplained:
            size, count = self._held.get(0, (0, 0))
            self._held[0] = size + unexplained, count

    def whole(self, limit: int) -> tuple[StackBytes, ...]:
        """The largest by whole stacks."""
        least = min(sorted((size for size, _ in self._held.values()), reverse=True)[:limit], default=0)
        rows = (
            StackBytes(stack_texts(stack_id, self._tables), size, count)
            for stack_id, (size, count) in self._held.items()
            if size and size >= least
        )
        return _largest(rows, limit)

    def own_code(self, limit: int) -> tuple[StackBytes, ...]:
        """The largest by the innermost frames of the user's own code, see `frames.own_code`."""
        sums: dict[tuple[str, ...] | None, tuple[int, int]] = {}
        for stack_id, (size, count) in self._held.items():
            code = own_code(self._parsed(stack_id), _SHOWN_FRAMES) or None
            size_before, count_before = sums.get(code, (0, 0))
            sums[code] = size_before + size, count_before + count
        rows = (StackBytes(code, size, count) for code, (size, count) in sums.items() if size)
        return _largest(rows, limit)

    def _parsed(self, stack_id: int) -> list[Frame]:
        frames = []
        for string_id in self._tables.stacks.frames(stack_id):
            known = self._frames.get(string_id)
            if known is None:
                known = self._frames[string_id] = parse_frame(self._tables.strings[string_id])
            frames.append(known)
        return frames


def _largest(rows: Iterable[StackBytes], limit: int) -> tuple[StackBytes, ...]:
    """Ids have no part in the order, so that a copy of a recording has the same one."""
    return tuple(sorted(rows, key=lambda row: (-row.bytes, -row.count, row.stack or ()))[:limit])


def stack_texts(stack_id: int, tables: Tables) -> tuple[str, ...] | None:
    """The frames of a stack, outermost first; None for the null id."""
    return tuple(tables.strings[frame] for frame in tables.stacks.frames(stack_id)) or None
