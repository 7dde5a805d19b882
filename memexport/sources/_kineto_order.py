"""From rows in the order of their begin to rows in the order of their end, with what operators changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from memexport.sources._kineto_events import ROW, Rows
from memexport.sources._kineto_kinds import Role
from memexport.sources._kineto_nesting import NOBODY, Nesting, TooDeepError

PLACED: Final = np.dtype(
    [
        *ROW.descr,
        ("number", "i8"),  # in the order of the begins
        ("operator", "u4"),  # see `Places`, as the next two
        ("module", "u4"),
        ("phase", "u1"),
        ("net", "i8"),  # of an operator: bytes allocated less released, by it and by no operator inside it
        ("net_device", "i4"),  # the last of the devices where, by `in_recording`; −1: nothing was
    ]
)

_MAX_OPEN: Final = 2**17


def in_order_of_end(blocks: Iterable[Rows], nesting: Nesting, in_recording: Rows) -> Iterator[Rows]:
    """The rows as `PLACED`, in groups; of those that end together, the one that began last comes first.

    Args:
        blocks: the rows in the order of their begin.
        nesting: a new one.
        in_recording: the number in the recording of each device in the rows, the CPU's first.

    Raises:
        TooDeepError: more calls are open at once than any program has.
    """
    waiting, seen = np.empty(0, PLACED), 0
    for rows in blocks:
        placed, owner = _placed(rows, nesting, seen)
        seen += len(rows)
        waiting = np.concatenate((waiting, placed))
        _count_for(waiting, owner, placed, in_recording)
        # Whatever comes later begins no earlier than the last of these.
        over = waiting["end"] < rows["begin"][-1]
        yield _by_end(waiting[over])
        waiting = waiting[~over]
        if len(waiting) > _MAX_OPEN:
            raise TooDeepError
    yield _by_end(waiting)


def _placed(rows: Rows, nesting: Nesting, first: int) -> tuple[Rows, Rows]:
    """The rows with their places, and the number of the row that each one's memory is counted for."""
    places = nesting.place(rows)
    placed = np.zeros(len(rows), PLACED)
    for name in ROW.names or ():
        placed[name] = rows[name]
    placed["number"] = np.arange(first, first + len(rows))
    placed["operator"], placed["module"], placed["phase"] = places.operator, places.module, places.phase
    placed["net_device"] = -1
    return placed, places.owner


def _count_for(waiting: Rows, owner: Rows, placed: Rows, in_recording: Rows) -> None:
    """Add what the new rows allocate and release to their operators, which all have yet to end."""
    counted = (placed["kind"] == Role.MEMORY) & (owner != NOBODY)
    at = np.searchsorted(waiting["number"], owner[counted])
    np.add.at(waiting["net"], at, placed["bytes"][counted])
    np.maximum.at(waiting["net_device"], at, in_recording[placed["device"][counted]])


def _by_end(rows: Rows) -> Rows:
    is_call = rows["kind"] > Role.OUT_OF_MEMORY
    # Calls over the same time: the later one is inside. Points at the same time: as the file has them.
    number = np.where(is_call, -rows["number"], rows["number"])
    return rows[np.lexsort((number, is_call, -rows["begin"], rows["end"]))]
