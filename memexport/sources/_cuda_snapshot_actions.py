"""What the actions of a torch.cuda memory snapshot's trace are, and which counters they move."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import numpy as np

from memexport.model import Column, EventKind


class Action(enum.IntEnum):
    """What an entry of a trace says; torch's names in lower case.

    https://github.com/pytorch/pytorch/blob/v2.9.0/c10/cuda/CUDACachingAllocator.h
    """

    UNKNOWN = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    """The block can be used again: streams that still worked with it are done."""
    FREE = 4
    """Requested and completed at once, before torch told the two apart."""
    SEGMENT_ALLOC = 5
    SEGMENT_FREE = 6
    SEGMENT_MAP = 7
    SEGMENT_UNMAP = 8
    OOM = 9
    SNAPSHOT = 10
    USER_DEFINED = 11
    DEVICE_FREE = 12
    """Not torch's: what an OOM says of the device, as an event of its own before it."""

    @property
    def label(self) -> str:
        """Torch's name for it, and that of its event."""
        return self.name.lower()


MOVES: Final = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE)
"""What begins or ends the life of an allocation."""
GROWS: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
SHRINKS: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def _table(of: dict[Action, int], otherwise: int = 0) -> Column:
    return np.array([of.get(action, otherwise) for action in Action], np.int8)


KIND: Final = _table(
    {
        Action.ALLOC: EventKind.ALLOCATION,
        Action.FREE_REQUESTED: EventKind.RELEASE,
        Action.FREE: EventKind.RELEASE,
        Action.OOM: EventKind.MARKER,
        Action.SNAPSHOT: EventKind.MARKER,
        Action.USER_DEFINED: EventKind.MARKER,
    },
    EventKind.SAMPLE,
).astype(np.uint8)
"""The kind of event of each action."""

_RESERVED: Final = dict.fromkeys(GROWS, 1) | dict.fromkeys(SHRINKS, -1)

SIGNS: Final = {
    "allocated": _table({Action.ALLOC: 1, Action.FREE_REQUESTED: -1, Action.FREE: -1}),
    "active": _table({Action.ALLOC: 1, Action.FREE_COMPLETED: -1, Action.FREE: -1}),
    "reserved": _table(_RESERVED),
}
"""How the size of each action's entry changes a counter."""


def codes(labels: Iterable[str]) -> Column:
    """The `Action` of each of torch's names."""
    known = {action.label: action for action in Action if action != Action.DEVICE_FREE}
    return np.array([known.get(label, Action.UNKNOWN) for label in labels], np.uint8)
