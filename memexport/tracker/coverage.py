"""What readings of an accelerator's allocator miss: they come after operators, and a peak may be inside one.

The allocator keeps its own peak, for as long as the process runs or until the program resets it. If it rose
while we recorded, it is of this recording, and says how far the highest reading is below it. On the CPU no
allocator counts without being asked to: `capture="allocator"` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from memexport.tracker import counters

_WORTH_SAYING: Final = 0.01
"""Of the allocator's peak."""


class PeakCoverage:
    """Compares the allocators' own peaks, now and at the end, with what was read."""

    def __init__(self) -> None:
        self._before = {device: counters.peak_of(device) or 0 for device in _in_use()}

    def warnings(self, devices: Iterable[torch.device], highest_bytes: Mapping[str, int]) -> Iterator[str]:
        """A sentence for each device whose allocator had at least 1 % more than the highest reading."""
        for device in devices:
            peak, read = counters.peak_of(device), highest_bytes.get(str(device))
            if peak is None or read is None or peak <= self._before.get(device, 0):
                continue
            if peak - read >= _WORTH_SAYING * peak:
                yield (
                    f"{device}: inside an operator, {peak - read} bytes more were allocated for a moment "
                    f"than was ever read after one; the allocator's own peak is {peak} bytes"
                )


def _in_use() -> Iterator[torch.device]:
    """The accelerators that the process has used until now."""
    for type_ in ("cuda", "xpu"):
        module: Any = getattr(torch, type_)
        if module.is_available() and module.is_initialized():
            yield from (torch.device(type_, index) for index in range(module.device_count()))
