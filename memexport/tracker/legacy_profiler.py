"""Of which devices torch's legacy profiler takes what their allocators tell it."""

from __future__ import annotations

from typing import Final

import torch

from memexport.tracker.allocator_stats import UNSERVED, is_allocator_used

KNOWN_TYPE: Final = "cuda"
"""The accelerators whose memory it records, beside the CPU's; without saying which of several."""

_SILENT: Final = ("cuda", "mps")
"""Of those whose allocators tell profilers nothing there is nothing to print, either."""


def prints_of_accelerator() -> bool:
    """Whether it would print a line for each allocation on this process' accelerator: it knows no others."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type in (KNOWN_TYPE, *_SILENT):
        return False
    try:
        return is_allocator_used(accelerator.type)
    except UNSERVED:
        return True
