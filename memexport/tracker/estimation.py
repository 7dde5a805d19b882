"""What a session adds to a recording of simulated tensors: the allocator's estimate, the budget, warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from memexport.analysis.allocator_settings import UNLIMITED
from memexport.analysis.budget import BudgetCheck
from memexport.analysis.estimate import AllocatorEstimate
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

if TYPE_CHECKING:
    from memexport.tracker.fake import Simulation


class Estimation:
    """Follows the batches of one session.

    Args:
        simulation: what the program runs on.
        info: the recording's; its devices may still grow.
        tables: the recording's.
    """

    def __init__(self, simulation: Simulation, info: RecordingInfo, tables: Tables) -> None:
        self._simulation = simulation
        self._info = info
        budget = simulation.options.budget
        self._allocators = AllocatorEstimate(
            self._is_simulated, tables, simulation.settings, UNLIMITED if budget is None else budget
        )
        self._budget = None if budget is None else BudgetCheck(budget, self._has_budget, tables)

    def apply(self, batch: EventBatch) -> EventBatch:
        """The batch with estimated counters, and a marker where a device runs out of its budget."""
        batch = self._allocators.apply(batch)
        return batch if self._budget is None else self._budget.apply(batch)

    def complete(self, end: RecordingEnd) -> RecordingEnd:
        """The end with what is known of the simulation."""
        warnings = (*end.warnings, *self._simulation.warnings(), *self.exceeded())
        if self._budget is None or self._simulation.options.device != "cuda":
            return replace(end, warnings=warnings)
        allocators = self._allocators
        return replace(end, warnings=warnings, alloc_retries=allocators.retries, ooms=allocators.failures)

    def exceeded(self) -> Iterator[str]:
        """A sentence for each device that ran out of its budget."""
        budget = self._simulation.options.budget
        if self._budget is None or budget is None:
            return
        for found in self._budget.exceeded:
            yield found.describe(str(self._info.devices[found.device]), budget)

    def counters(self) -> Mapping[str, int]:
        """Of the simulated accelerator."""
        indices = [index for index in range(len(self._info.devices)) if self._is_simulated(index)]
        return self._allocators.counters(indices[0] if indices else -1)

    def _is_simulated(self, device: int) -> bool:
        return self._simulation.options.device == "cuda" and self._info.devices[device].type == "cuda"

    def _has_budget(self, device: int) -> bool:
        """The budget is the accelerator's, if there is one: the host beside it has its own memory."""
        return self._simulation.options.device != "cuda" or self._is_simulated(device)
