"""Which modules have a series of their own: the first and largest few, for good; the rest is "other"."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.errors import UsageError
from memexport.exporters._otel_metrics import MAX_SERIES, NO_MODULE, OTHER
from memexport.model import Category, StringTable

MAX_MODULES: Final = 50
"""The most modules that a process can have series for."""
MAX_DEVICES: Final = 14
"""Devices with a name of their own; any further ones share the name "other"."""

CATEGORIES: Final = tuple(c.name.lower() for c in Category if c is not Category.UNKNOWN)
"""The names of the categories, by the number less one."""

# One series per device, module and category, and each device has "none" and "other" besides its modules.
assert (MAX_MODULES + 1 + MAX_DEVICES + 1) * len(CATEGORIES) < MAX_SERIES  # noqa: S101 - checked once, at import

Ints = npt.NDArray[np.int64]

_UNSEEN: Final = -1
_OTHER_SLOT: Final = 0


class Room:
    """How many more modules can get a series; the devices of a process share it.

    Args:
        modules: places for modules.
        of_none: places for what no module allocated; if there are no more, it takes those of modules.
    """

    def __init__(self, modules: int, of_none: int = 0) -> None:
        self._modules = modules
        self._of_none = of_none

    @classmethod
    def for_modules(cls, count: int) -> Room:
        """Room for so many modules.

        Raises:
            UsageError: there are too many, or fewer than none.
        """
        if not 0 <= count <= MAX_MODULES:
            raise UsageError(f"top_modules is {count}, but must be from 0 to {MAX_MODULES}")
        return cls(count, of_none=1)

    def take(self, name: str) -> bool:
        """Take a place for this module if there is one."""
        if name == NO_MODULE and self._of_none:
            self._of_none -= 1
            return True
        if not self._modules:
            return False
        self._modules -= 1
        return True


class ModuleSlots:
    """Gives each module of a device a slot: its own, or 0, which is "other". A slot is kept for ever.

    Args:
        strings: what module ids stand for; may grow.
        depth: how many components of a name count: "layers.0.attn" at depth 2 is "layers.0".
        room: how many slots there can be; shared by the devices of a process.

    Attributes:
        names: of the slots.
    """

    def __init__(self, strings: StringTable, depth: int, room: Room) -> None:
        if depth < 1:
            raise UsageError(f"module_depth is {depth}, but must be at least 1")
        self.names = [OTHER]
        self._strings = strings
        self._depth = depth
        self._room = room
        self._slot_of_name = {OTHER: _OTHER_SLOT}
        self._slots = np.empty(0, np.int64)

    def of(self, modules: npt.NDArray[np.uint32], sizes: Ints) -> Ints:
        """The slot of each module id; new ones are let in, the largest first, as long as there is room."""
        if len(self._slots) < len(self._strings):
            more = np.full(len(self._strings) - len(self._slots), _UNSEEN)
            self._slots = np.concatenate((self._slots, more))
        slots: Ints = self._slots[modules]
        unseen = slots == _UNSEEN
        if unseen.any():
            self._let_in(modules[unseen], sizes[unseen])
            slots = self._slots[modules]
        return slots

    def _let_in(self, modules: npt.NDArray[np.uint32], sizes: Ints) -> None:
        ids, where = np.unique(modules, return_inverse=True)
        by_name: dict[str, int] = {}
        names = [self._cut(module) for module in ids.tolist()]
        for name, size in zip(names, np.bincount(where, sizes).tolist(), strict=True):
            by_name[name] = by_name.get(name, 0) + int(size)
        for name in sorted(by_name, key=lambda name: (name != NO_MODULE, -by_name[name], name)):
            self._slot(name)
        self._slots[ids] = [self._slot_of_name.get(name, _OTHER_SLOT) for name in names]

    def _slot(self, name: str) -> None:
        if name not in self._slot_of_name and self._room.take(name):
            self._slot_of_name[name] = len(self.names)
            self.names.append(name)

    def _cut(self, module: int) -> str:
        name = self._strings.get(module)
        return NO_MODULE if name is None else ".".join(name.split(".", self._depth)[: self._depth])
