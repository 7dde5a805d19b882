"""Several recordings as one: the ranks of a run, merged by time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from memexport.errors import InputError
from memexport.model import COLUMNS, Column, Device, EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources import Source
from memexport.sources._clock_skew import StepClock

_NEVER: Final = np.iinfo(np.int64).max
_KEY: Final = "key"
_EVENTS_OF_EACH: Final = 2_000
"""How many events a batch has of each recording at the least: what follows works rank by rank."""


class MergedSource:
    """The events of several recordings in the order in which they ended, each with its rank.

    Memory grows with the number of recordings (a batch of each) and what their tables hold, not with their
    length. A recording that breaks off is used as far as it goes; a warning names it.

    Args:
        parts: the recordings, opened; closing this closes them.
        names: what to call each in a warning.
        refused: sentences about recordings that could not be opened.
        ranks: those of all recordings, where each event has its own already, and no two recordings share one.
    """

    def __init__(
        self,
        parts: Sequence[Source],
        names: Sequence[str],
        refused: Sequence[str] = (),
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._parts = list(parts)
        self._refused = refused
        self.tables = Tables()
        devices: list[Device] = []
        own = _ranks([part.info for part in parts])
        self._ranks = own if ranks is None else list(ranks)
        self._lanes = [
            _Lane(part, name, rank if ranks is None else None, self.tables, devices)
            for part, name, rank in zip(parts, names, own, strict=True)
        ]
        self._clock = StepClock(self.tables.strings)
        self._least = _EVENTS_OF_EACH * len(parts)
        self.info = _merged_info([part.info for part in parts], self._ranks, devices)

    @staticmethod
    def sniff(head: bytes) -> bool:  # noqa: ARG004 - a Source's interface
        """No file is one."""
        return False

    def batches(self) -> Iterator[EventBatch]:
        """Every event; those of one recording keep their order."""
        self._clock = StepClock(self.tables.strings)
        for lane in self._lanes:
            lane.restart()
        waiting: list[EventBatch] = []
        while open_lanes := [lane for lane in self._lanes if lane.fill()]:
            # Up to here, every recording has told all that it has.
            until = min(lane.last_ns for lane in open_lanes)
            waiting.append(_in_order([lane.take(until) for lane in open_lanes if lane.first_ns <= until]))
            if sum(map(len, waiting)) >= self._least:
                yield self._joined(waiting)
        if waiting:
            yield self._joined(waiting)

    def _joined(self, waiting: list[EventBatch]) -> EventBatch:
        batch = EventBatch.concat(waiting) if len(waiting) > 1 else waiting[0]
        waiting.clear()
        self._clock.add(batch)
        return batch

    def end(self) -> RecordingEnd:
        """What each recording says, with its rank before it; sums of what is counted."""
        ends = [lane.end() for lane in self._lanes]
        return RecordingEnd(
            warnings=(
                *self._refused,
                *(
                    f"{lane.title}: {w}"
                    for lane, e in zip(self._lanes, ends, strict=True)
                    for w in e.warnings
                ),
                *self._missing(),
                *self._clock.warnings(),
            ),
            dropped_events=sum(end.dropped_events for end in ends),
            alloc_retries=_sum([end.alloc_retries for end in ends]),
            ooms=_sum([end.ooms for end in ends]),
        )

    @property
    def fraction_read(self) -> float | None:
        """The mean over the recordings; None if one of them does not know."""
        read = [part.fraction_read for part in self._parts]
        known = [fraction for fraction in read if fraction is not None]
        return sum(known) / len(known) if len(known) == len(read) else None

    def close(self) -> None:
        """Give all files back. Calling it twice does nothing."""
        for part in self._parts:
            part.close()

    def _missing(self) -> Iterator[str]:
        world = self.info.world_size or 0
        missing = sorted(set(range(world)) - set(self._ranks))
        if missing:
            shown = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
            yield f"{len(missing)} of {world} ranks are missing: {shown}"


class _Lane:
    """One of the recordings, and its events that were not handed out yet."""

    def __init__(
        self, source: Source, name: str, rank: int | None, tables: Tables, devices: list[Device]
    ) -> None:
        self.title = name if rank is None else f"rank {rank} ({name})"
        self._source = source
        self._rank = rank
        self._tables = tables
        self._string_ids = np.zeros(1, np.uint32)
        self._stack_ids = np.zeros(1, np.uint32)
        self._devices = devices
        self._device_ids = np.full(1, -1, np.int32)
        self.restart()

    @property
    def first_ns(self) -> int:
        """The key of the first event at hand."""
        return int(self._key[self._next])

    @property
    def last_ns(self) -> int:
        """The key of the last event at hand; those to come are no earlier."""
        return int(self._key[-1])

    def restart(self) -> None:
        """Begin from the start."""
        self._batches = self._source.batches()
        self._columns: dict[str, Column] = {}
        self._key = np.empty(0, np.int64)
        self._next = 0
        self._broken: InputError | None = None

    def fill(self) -> bool:
        """Have an event at hand; whether there is one."""
        while self._next == len(self._key):
            try:
                batch = next(self._batches, None)
            except InputError as error:
                self._broken, batch = error, None
            if batch is None:
                return False
            if not len(batch):
                continue
            # Their order is that of their ends, but for what is only known late: that keeps its place.
            ends = batch.time_unix_ns + np.maximum(batch.duration_ns, 0)
            ends[0] = max(int(ends[0]), int(self._key[-1]) if len(self._key) else -_NEVER)
            self._key = np.maximum.accumulate(ends)
            self._columns, self._next = self._translated(batch), 0
        return True

    def take(self, until: int) -> dict[str, Column]:
        """Hand out the events up to this key, as columns, their keys among them."""
        begin, self._next = self._next, int(np.searchsorted(self._key, until, side="right"))
        part = slice(begin, self._next)
        return {_KEY: self._key[part], **{name: column[part] for name, column in self._columns.items()}}

    def end(self) -> RecordingEnd:
        end = self._source.end()
        if self._broken is None:
            return end
        return dataclasses.replace(end, warnings=(*end.warnings, f"breaks off: {self._broken}"))

    def _translated(self, batch: EventBatch) -> dict[str, Column]:
        """With ids of the merged tables, and the rank of this recording, if it is of one."""
        self._grow()
        columns = batch.columns()
        for name in ("name", "module", "thread", "inputs"):
            columns[name] = self._string_ids[columns[name]]
        columns["stack"] = self._stack_ids[columns["stack"]]
        columns["device"] = self._device_ids[columns["device"]]
        if self._rank is not None:
            columns["rank"] = np.full(len(batch), self._rank, np.int32)
        return columns

    def _grow(self) -> None:
        own, merged = self._source.tables, self._tables
        strings = own.strings.since(len(self._string_ids))
        if strings:
            ids = [merged.strings.intern(string) for string in strings]
            self._string_ids = np.concatenate((self._string_ids, np.array(ids, np.uint32)))
        stacks = own.stacks.since(len(self._stack_ids))
        if stacks:
            known = self._stack_ids.tolist()
            for parent, frame in stacks:
                known.append(merged.stacks.child(known[parent], int(self._string_ids[frame])))
            self._stack_ids = np.array(known, np.uint32)
        new = self._source.info.devices[len(self._device_ids) - 1 :]
        if new:
            # The last entry is that of −1, no device.
            ids = [*self._device_ids[:-1].tolist(), *map(self._device, new), -1]
            self._device_ids = np.array(ids, np.int32)

    def _device(self, device: Device) -> int:
        """The place of a device of this type and index; which one of a rank it is, the rank says."""
        plain = Device(device.type, device.index)
        if plain not in self._devices:
            self._devices.append(plain)
        return self._devices.index(plain)


def _in_order(parts: Sequence[dict[str, Column]]) -> EventBatch:
    """The events of all parts by their keys; of equal ones, in the order of the parts."""
    if len(parts) == 1:
        return EventBatch(**{name: parts[0][name] for name in COLUMNS})
    order = np.argsort(np.concatenate([part[_KEY] for part in parts]), kind="stable")
    return EventBatch(**{name: np.concatenate([part[name] for part in parts])[order] for name in COLUMNS})


def _ranks(infos: Sequence[RecordingInfo]) -> list[int]:
    """The rank of each recording: what it says, if all say so and no two the same; else its place."""
    said = [info.rank for info in infos]
    if None not in said and len(set(said)) == len(said):
        return [int(rank) for rank in said if rank is not None]
    return list(range(len(infos)))


def _merged_info(
    infos: Sequence[RecordingInfo], ranks: Sequence[int], devices: list[Device]
) -> RecordingInfo:
    """What is true for all of them; None for what is not."""
    first = infos[0]
    same = {
        field.name: getattr(first, field.name)
        for field in dataclasses.fields(RecordingInfo)
        if all(getattr(info, field.name) == getattr(first, field.name) for info in infos)
    }
    starts = [info.start_time_unix_ns for info in infos if info.start_time_unix_ns is not None]
    return dataclasses.replace(
        RecordingInfo(**same),
        rank=None,
        local_rank=None,
        pid=None,
        world_size=first.world_size or max(ranks) + 1,
        clock=first.clock,
        start_time_unix_ns=min(starts, default=None),
        devices=devices,
        unknown_fields=b"",
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    """None where one is not known: the sum is not either."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
