"""The moments at which a place held the most: over a recording, and in each of its steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memexport.analysis.live import Allocations, Lifetimes
from memexport.exporters._residence import Residence


class Peak:
    """The moment at which a place's `allocated` was first at its highest.

    Attributes:
        step: the training step that it is of; −1 outside of any, and for that of a recording.
        bytes: the counter; −1 while it is not known.
        time_ns: on the trace's time axis.
    """

    def __init__(self, step: int = -1) -> None:
        self.step = step
        self.bytes = -1
        self.time_ns = 0
        self._lifetimes: Lifetimes | None = None
        self._position = -1

    def add(self, residence: Residence, rows: slice = slice(None)) -> None:
        """Take what happened at the place in one more batch; `rows` of its positions, if not in all."""
        allocated = residence.allocated_bytes[rows]
        if int(allocated.max(initial=-1)) <= self.bytes:
            return
        highest = int(allocated.argmax())
        self.bytes, self._position = int(allocated[highest]), int(residence.positions[rows][highest])
        self.time_ns = int(residence.end_ns[self._position])
        self._lifetimes = residence.lifetimes

    def live(self) -> Allocations:
        """What lived then. Worked out when asked for: most peaks are soon surpassed."""
        if self._lifetimes is None:
            return Allocations.none()
        return self._lifetimes.live_at(self._position)


class StepPeaks:
    """The peak of each step, once the step is over.

    What lies outside of steps has a peak only where it is higher than all before: so the recording's own is
    always among them.
    """

    def __init__(self) -> None:
        self._peak = Peak()
        self._highest = -1

    def add(self, residence: Residence) -> Iterator[Peak]:
        """Take one more batch; the peaks of the steps that are over."""
        step = residence.step
        cuts = (np.flatnonzero(step[1:] != step[:-1]) + 1).tolist()
        for begin, stop in zip([0, *cuts], [*cuts, len(step)], strict=True):
            if begin < stop and int(step[begin]) != self._peak.step:
                yield from self.end()
                self._peak = Peak(int(step[begin]))
            self._peak.add(residence, slice(begin, stop))

    def end(self) -> Iterator[Peak]:
        """The peak of the step that is not over yet."""
        if self._peak.bytes > (-1 if self._peak.step >= 0 else self._highest):
            self._highest = max(self._highest, self._peak.bytes)
            yield self._peak
