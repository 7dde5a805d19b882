"""Whether an accelerator's allocator once had more than all that was read of it.

It keeps its own peak, for as long as the process runs or until the program resets it. If that rose while we
recorded, it is of this recording, and `allocators` finds in which operator; unless the program reset it just
then. On the CPU no allocator counts without being asked to: `capture="allocator"` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch

from memexport.tracker import counters
from memexport.tracker.allocator_stats import devices_in_use

_WORTH_SAYING: Final = 0.01
"""Of the allocator's peak."""


class PeakCoverage:
    """Compares the allocators' own peaks, now and at the end, with what was read."""

    def __init__(self) -> None:
        self._before = {device: counters.peak_of(device) or 0 for device in devices_in_use()}

    def warnings(self, devices: Iterable[torch.device], highest_bytes: Mapping[str, int]) -> Iterator[str]:
        """A sentence for each device whose allocator had at least 1 % more than the highest reading."""
        for device in devices:
            peak, read = counters.peak_of(device), highest_bytes.get(str(device))
            if peak is None or read is None or peak <= self._before.get(device, 0):
                continue
            if peak - read >= _WORTH_SAYING * peak:
                yield (
                    f"{device}: for a moment, {peak - read} bytes more were allocated than was ever read; "
                    f"the allocator's own peak is {peak} bytes"
                )
