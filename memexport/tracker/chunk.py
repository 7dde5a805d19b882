"""A chunk of the raw log, taken apart into columns, and the events that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from memexport.tracker.rows import DEVICE_UNIT, LABEL_UNIT, ROW_DTYPE, Labels

Ints = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Derived:
    """An event that follows from rows, and the row after which it stands."""

    after: int
    values: dict[str, int]


@dataclass(frozen=True)
class Rows:
    """A chunk of rows, taken apart; columns as in `rows`, times by `time.perf_counter_ns`."""

    kind: npt.NDArray[np.uint8]
    device: npt.NDArray[np.int32]
    label: npt.NDArray[np.uint32]
    phase: npt.NDArray[np.uint8]
    module: npt.NDArray[np.uint32]
    thread: npt.NDArray[np.uint32]
    time: Ints
    first: Ints
    second: Ints

    @staticmethod
    def parse(chunk: bytes, labels: Labels) -> Rows:
        """Read whole rows."""
        raw = np.frombuffer(chunk, ROW_DTYPE)
        code, context = raw["code"], raw["context"]
        return Rows(
            kind=(code & (DEVICE_UNIT - 1)).astype(np.uint8),
            device=((code & (LABEL_UNIT - 1)) // DEVICE_UNIT).astype(np.int32),
            label=code // LABEL_UNIT,
            phase=np.array(labels.phases, np.uint8)[context],
            module=np.array(labels.modules, np.uint32)[context],
            thread=np.array(labels.threads, np.uint32)[context],
            time=raw["time"].copy(),
            first=raw["first"].copy(),
            second=raw["second"].copy(),
        )

    def part(self, begin: int, stop: int) -> Rows:
        """The rows from `begin` up to `stop`."""
        return Rows(*(getattr(self, column.name)[begin:stop] for column in fields(self)))

    def __len__(self) -> int:
        return len(self.kind)
