"""Which events of a recording are wanted: a range, devices, a least size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from memexport.analysis.range_cut import RangeCut
from memexport.analysis.size_cut import SizeCut
from memexport.analysis.when import When, parse_when
from memexport.errors import UsageError
from memexport.model import Device, EventBatch, RecordingEnd

_OF_THE_WHOLE: Final = (
    "allocation retries, failed requests and dropped events are those of the whole recording"
)


@dataclass(frozen=True)
class Selection:
    """A part of a recording, for `Recording.select`. Sums, starts and peaks of it are exact.

    **Range.** Events stand in the order in which they ended. A range begins at the first event that is, or
    ended at or after, `begin`, and goes up to the first that is, or ended at or after, `until`, which is not
    in it any more; what comes then is not read. So a step that contains the range is not in it; one that
    began before the range and ends in it is, from the range's begin on. What was allocated before and is
    live when the range begins comes first in it, as ALLOCATION events, then each device's counters, as a
    SAMPLE. The recording's MARKER "peak" is not of a range, and left out.

    **Devices.** Events of other devices are left out; those of no device (steps, phases, markers) are not.

    **Least size.** An ALLOCATION of fewer bytes and its RELEASE become SAMPLE events, so that the counters'
    curves stay as they were; those without counters are left out. Operators are kept.

    Attributes:
        begin: with `until`, an event's index, counted from 0 over the whole recording; or text, see
            `memexport convert --help`: "#1000", "12.5s" after the start, "2026-11-21T13:00:00Z". None: as far
            as the recording goes.
        devices: names, "cuda:0"; none stands for all.
        min_bytes: the least size of an allocation.

    Raises:
        UsageError: `begin` or `until` is no place in a recording, or they are the wrong way round.
    """

    begin: int | str | None = None
    until: int | str | None = None
    devices: tuple[str, ...] = ()
    min_bytes: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.devices, str):
            raise UsageError(f"devices are a tuple of names, not {self.devices!r}")
        begin, until = self.range
        if begin is not None and until is not None and begin.unit == until.unit and until.value < begin.value:
            raise UsageError(f"the range ends at {self.until} before it begins at {self.begin}")

    @property
    def range(self) -> tuple[When | None, When | None]:
        """`begin` and `until`, understood."""
        return (
            None if self.begin is None else parse_when(self.begin),
            None if self.until is None else parse_when(self.until),
        )


class SelectionPass:
    """Takes the batches of a recording in order and gives those of the selection; one pass over it.

    Args:
        selection: its devices and least size.
        cut: its range.
        devices: what the column `device` indexes; may grow.
    """

    def __init__(self, selection: Selection, cut: RangeCut, devices: list[Device]) -> None:
        self._selection = selection
        self._range = cut
        self._sizes = SizeCut(selection.min_bytes)
        self._devices = devices
        self._lacks_devices = False

    @property
    def is_over(self) -> bool:
        """Whether no later event can be of the selection."""
        return self._range.is_over

    def take(self, batch: EventBatch) -> EventBatch:
        """What the selection has of the batch, and perhaps before it."""
        return self._chosen(self._range.take(batch))

    def finish(self) -> EventBatch:
        """What is left to give when the recording is over.

        Raises:
            UsageError: a device was selected that the recording did not have.
        """
        known = [str(device) for device in self._devices]
        for name in self._selection.devices:
            if name not in known:
                raise UsageError(
                    f"there is no device {name!r}", hint=f"devices: {', '.join(known) or 'none'}"
                )
        return self._chosen(self._range.finish())

    def end(self, end: RecordingEnd) -> RecordingEnd:
        """What the recording says at its end, and what the selection left out."""
        warnings = tuple(self._warnings())
        if warnings and (end.alloc_retries or end.ooms or end.dropped_events):
            warnings += (_OF_THE_WHOLE,)
        return dataclasses.replace(end, warnings=(*end.warnings, *warnings))

    def _chosen(self, batch: EventBatch) -> EventBatch:
        if self._selection.devices:
            batch = self._of_devices(batch)
        return self._sizes.take(batch) if self._selection.min_bytes > 0 else batch

    def _of_devices(self, batch: EventBatch) -> EventBatch:
        wanted = [i for i, device in enumerate(self._devices) if str(device) in self._selection.devices]
        chosen = np.isin(batch.device, [-1, *wanted])
        if chosen.all():
            return batch
        self._lacks_devices = True
        return batch.select(chosen)

    def _warnings(self) -> Iterator[str]:
        if before := self._range.events_before:
            yield f"{before} event{' was' if before == 1 else 's were'} left out before the selected range"
        if self.is_over:
            yield "what comes after the selected range was not read"
        if self._lacks_devices:
            yield "events of other devices were left out"
        if self._sizes.lacks_small:
            yield (
                f"allocations of less than {self._selection.min_bytes} bytes were left out; "
                "the counters still have them"
            )
