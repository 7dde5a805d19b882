"""Reads the pickle that torch's `MemoryTracker.save_stats` writes, without executing anything in it.

It holds, per operator, a name and the device's counters in MiB, and where forward began and ended last. It
has no clock, no device, no allocations. The layout is that of torch 2.0 to 2.13,
`torch/distributed/_tools/memory_tracker.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from memexport.errors import InputError
from memexport.model import Column, Device, EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources._memory_tracker_events import Operators, phases_of, with_markers
from memexport.sources.restricted_pickle import PickleRefusedError, Value, loads

MAX_FILE_BYTES: Final = 2**30
"""Fifteen million operators. The format can only be read as a whole, so a limit keeps it within memory."""

_BATCH: Final = 8_192
_BYTES_PER_MIB: Final = 1024 * 1024
_MAX_MIB: Final = 2.0**42
_COUNTERS: Final = ("memories_allocated", "memories_active", "memories_reserved")
# Newer versions of torch add `op_index`, which says nothing that the others do not.
_KNOWN_KEYS: Final = {*_COUNTERS, "markers", "num_alloc_retries", "op_index"}

Stats = dict[int | str, Value]


class MemoryTrackerSource:
    """A legacy `MemoryTracker` recording. The file is read, checked and closed when this is constructed.

    Every operator becomes an OPERATOR event whose size is the change since the one before, every marker a
    MARKER before the operator that it points to; times count events. The module is given in the last forward
    pass only, because elsewhere the format repeats that of the last forward call.
    """

    info: RecordingInfo
    tables: Tables

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._done = 0
        stats = self._load()
        self.tables = Tables()
        # The tracker asks the current accelerator's module for its counters, and does not say which that is.
        self.info = RecordingInfo(
            format="torch.memory_tracker", producer="torch", clock="index", devices=[Device("accelerator")]
        )
        self._events, self._end = self._decode(stats)

    @staticmethod
    def sniff(head: bytes) -> bool:
        """Whether it is a pickle whose first strings have the key that only this format has."""
        return head[:1] == b"\x80" and b"memories_allocated" in head

    def batches(self) -> Iterator[EventBatch]:
        """Every event, in order."""
        self._done = 0
        for begin in range(0, len(self._events), _BATCH):
            self._done = min(begin + _BATCH, len(self._events))
            yield self._events.select(slice(begin, begin + _BATCH))

    def end(self) -> RecordingEnd:
        """Warnings and totals."""
        return self._end

    @property
    def fraction_read(self) -> float | None:
        """How many of the events the running pass has handed out, 0 to 1."""
        return self._done / len(self._events) if len(self._events) else 1.0

    def close(self) -> None:
        """Do nothing: the file is closed already."""

    def _load(self) -> Stats:
        try:
            size = self._path.stat().st_size
            if size > MAX_FILE_BYTES:
                raise InputError(
                    self._path, None, f"has {size} bytes, more than the {MAX_FILE_BYTES} allowed"
                )
            stats = loads(self._path.read_bytes())
        except OSError as error:
            raise InputError(self._path, None, error.strerror or str(error)) from error
        except PickleRefusedError as error:
            raise InputError(self._path, f"byte {error.position}", error.what) from error
        return stats

    def _decode(self, stats: Stats) -> tuple[EventBatch, RecordingEnd]:
        for key in sorted(_KNOWN_KEYS - {"op_index"}):
            if key not in stats:
                raise self._wrong(None, f"has no key {key!r}")
        names, *counters = self._counters(stats)
        markers = self._markers(stats["markers"], len(names))
        retries = stats["num_alloc_retries"]
        if not isinstance(retries, int) or not 0 <= retries < 2**63:
            raise self._wrong("num_alloc_retries", "is not a count")
        phases = phases_of(len(names), markers)
        operators = Operators(names, phases, self.tables.strings)
        events = with_markers(operators.columns(counters), markers, self.tables.strings)
        unknown = sorted(str(key) for key in stats.keys() - _KNOWN_KEYS)
        return events, RecordingEnd(tuple(operators.warnings(unknown)), alloc_retries=retries)

    def _counters(self, stats: Stats) -> tuple[list[str], Column, Column, Column]:
        """The operators' names, and the three counters in bytes."""
        names, allocated = self._counter(stats, "memories_allocated")
        same = [self._counter(stats, key) for key in _COUNTERS[1:]]
        for key, (others, _) in zip(_COUNTERS[1:], same, strict=True):
            if others != names:
                raise self._wrong(key, "does not name the same operators as memories_allocated")
        return names, allocated, same[0][1], same[1][1]

    def _counter(self, stats: Stats, key: str) -> tuple[list[str], Column]:
        entries = self._dict(stats[key], key)
        names: list[str] = []
        values: list[float] = []
        for index in range(len(entries)):
            match entries.get(index):
                case (str(name), float() | int() as mib) if 0 <= mib <= _MAX_MIB:
                    names.append(name)
                    values.append(mib)
                case (str(), float() | int() as mib):
                    raise self._wrong(f"{key}[{index}]", f"{mib} MiB is no amount of memory")
                case None:
                    raise self._wrong(
                        f"{key}[{index}]", f"is missing, though there are {len(entries)} entries"
                    )
                case _:
                    raise self._wrong(f"{key}[{index}]", "is not a name and a number of MiB")
        return names, np.rint(np.array(values, float) * _BYTES_PER_MIB).astype(np.int64)

    def _markers(self, markers: Value, operators: int) -> dict[str, int]:
        """The markers by name, in the order of the operators that they stand before."""
        checked: dict[str, int] = {}
        for name, index in self._dict(markers, "markers").items():
            if not isinstance(name, str) or not isinstance(index, int):
                raise self._wrong("markers", "has an entry that is not a name and an index")
            if not 0 <= index <= operators:
                raise self._wrong(f"markers[{name!r}]", f"is {index}, but there are {operators} operators")
            checked[name] = index
        return dict(sorted(checked.items(), key=lambda pair: pair[1]))

    def _dict(self, value: Value, where: str) -> Stats:
        if not isinstance(value, dict):
            raise self._wrong(where, f"is a {type(value).__name__}, not a dict")
        return value

    def _wrong(self, where: str | None, what: str) -> InputError:
        return InputError(self._path, where, f"{what}; this is not what MemoryTracker.save_stats writes")
