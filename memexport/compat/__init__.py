"""Drop-in `MemoryTracker`, `MemTracker`, `FSDPMemTracker` and `ModTracker`, over memexport's tracker.

The classes of `torch.distributed._tools` under the same names, with the same constructors, methods and
attributes. `docs/compat.md` lists where they differ.
"""

from __future__ import annotations

from memexport.compat._categories import FSDPRefType, MemRefType
from memexport.compat._module_stats import FSDPModState, ModState
from memexport.compat.fsdp_mem_tracker import FSDPMemTracker
from memexport.compat.mem_tracker import MemTracker
from memexport.compat.memory_tracker import MemoryTracker
from memexport.compat.mod_tracker import ModTracker

__all__ = [
    "FSDPMemTracker",
    "FSDPModState",
    "FSDPRefType",
    "MemRefType",
    "MemTracker",
    "MemoryTracker",
    "ModState",
    "ModTracker",
]
