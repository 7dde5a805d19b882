"""The entries of a torch snapshot's trace as rows, set aside in a temporary file until the end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from memexport.model import Column, EventBatch, EventKind, Tables

ACTIONS: Final = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "user_defined",
)
ALLOC, FREE_REQUESTED, FREE_COMPLETED = range(3)
OOM, SNAPSHOT, USER_DEFINED = 7, 8, 9
GROWS: Final = (3, 5)
SHRINKS: Final = (4, 6)

NO_ROW: Final = 255

ROW: Final = np.dtype(
    [
        ("action", "u1"),  # index into `ACTIONS`
        ("address", "u8"),  # of an "oom": what the device had left
        ("size", "i8"),
        ("stream", "u8"),
        ("time_us", "i8"),
        ("stack", "u4"),
        ("module", "u4"),
        ("name", "u4"),
    ]
)
Rows = npt.NDArray[Any]

_READ_ROWS: Final = 65_536
_STREAM: Final = "stream "


class Spool:
    """Rows in a temporary file: a pickle's trace can only be written when its device's comes up."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.count = 0

    def append(self, rows: Rows) -> None:
        """Set the rows aside.

        Raises:
            OSError: the folder for temporary files is full.
        """
        self._file.write(rows.tobytes())
        self.count += len(rows)

    def read(self, first: int) -> Iterator[Rows]:
        """The rows from number `first` on, in order, some at a time."""
        self._file.seek(first * ROW.itemsize)
        while data := self._file.read(_READ_ROWS * ROW.itemsize):
            yield np.frombuffer(data, ROW)

    def close(self) -> None:
        """Give the file back. Calling it twice does nothing."""
        self._file.close()


class Streams:
    """Stream numbers from the text that a recording has for them ("stream 7", "stream 0x55d0c8")."""

    def __init__(self, tables: Tables) -> None:
        self._strings = tables.strings
        self._known: dict[int, int] = {0: 0}

    def of(self, thread: Column) -> Column:
        """The stream of each event; 0, the default one, for threads of other names."""
        distinct, index = np.unique(thread, return_inverse=True)
        return np.array([self.number(string_id) for string_id in distinct.tolist()], np.uint64)[index]

    def number(self, string_id: int) -> int:
        """The stream that the string with this id names."""
        known = self._known.get(string_id)
        if known is None:
            known = self._known[string_id] = _stream(self._strings[string_id])
        return known


def _stream(text: str) -> int:
    if not text.startswith(_STREAM):
        return 0
    try:
        number = int(text.removeprefix(_STREAM), 0)
    except ValueError:
        return 0
    return number if 0 <= number < 1 << 64 else 0


class Entries:
    """Makes rows of the events of one device.

    Attributes:
        has_completions: whether frees and their completions are told apart, as torch's own snapshots do.
            Else every free is complete at once.
    """

    def __init__(self, tables: Tables, streams: Streams, *, of_snapshot: bool) -> None:
        self._strings = tables.strings
        self._streams = streams
        self._of_snapshot = of_snapshot
        self._device_free = 0

    def actions(self, batch: EventBatch) -> Column:
        """The action of each event of a batch; `NO_ROW` for what a trace does not have."""
        action = np.full(len(batch), NO_ROW, np.uint8)
        has_address = batch.address != 0
        action[(batch.kind == EventKind.ALLOCATION) & has_address] = ALLOC
        action[(batch.kind == EventKind.RELEASE) & has_address] = FREE_REQUESTED
        samples = batch.kind == EventKind.SAMPLE
        for number in (FREE_COMPLETED, *GROWS, *SHRINKS):
            if (named := self._strings.find(ACTIONS[number])) is not None:
                action[samples & (batch.name == named) & has_address] = number
        markers = np.flatnonzero(batch.kind == EventKind.MARKER)
        numbers = [self._marker(string_id) for string_id in batch.name[markers].tolist()]
        action[markers] = np.array(numbers, np.uint8)
        return action

    def rows(self, batch: EventBatch, action: Column) -> Rows:
        """The rows for the events of which the action is known."""
        kept = np.flatnonzero(action != NO_ROW)
        rows = np.zeros(len(kept), ROW)
        rows["action"] = action[kept]
        rows["address"] = batch.address[kept]
        rows["size"] = np.maximum(batch.size_bytes[kept], 0)
        rows["stream"] = self._streams.of(batch.thread[kept])
        rows["time_us"] = batch.time_unix_ns[kept] // 1_000
        rows["stack"], rows["module"] = batch.stack[kept], batch.module[kept]
        rows["name"] = self._names(batch.name[kept], rows["action"])
        self._set_device_free(batch, kept, rows)
        return self._completed(rows, batch.name[kept])

    def _marker(self, string_id: int) -> int:
        name = self._strings.get(string_id)
        if name in ("start", "peak", None):
            return NO_ROW
        return {"oom": OOM, "snapshot": SNAPSHOT}.get(name or "", USER_DEFINED)

    def _names(self, name: Column, action: Column) -> Column:
        """What is known beyond the action: the operator, or what the user said."""
        if self._of_snapshot:
            return np.where((action == ALLOC) | (action == USER_DEFINED), name, 0)
        return np.where((action <= FREE_REQUESTED) | (action == USER_DEFINED), name, 0)

    def _set_device_free(self, batch: EventBatch, kept: Column, rows: Rows) -> None:
        """Give each "oom" what the SAMPLE before it says, which may stand in an earlier batch."""
        said = self._strings.find("device_free")
        samples = np.flatnonzero((batch.kind == EventKind.SAMPLE) & (batch.name == (said or 2**32 - 1)))
        ooms = np.flatnonzero(rows["action"] == OOM)
        before = np.searchsorted(samples, kept[ooms]) - 1
        for row, sample in zip(ooms.tolist(), before.tolist(), strict=True):
            size = int(batch.size_bytes[samples[sample]]) if sample >= 0 else self._device_free
            rows["address"][row] = max(0, size)
        if len(samples):
            self._device_free = int(batch.size_bytes[samples[-1]])

    def _completed(self, rows: Rows, name: Column) -> Rows:
        """With a completion after each free that will not get one of its own."""
        awaited = self._strings.find(ACTIONS[FREE_REQUESTED]) if self._of_snapshot else None
        at_once = (rows["action"] == FREE_REQUESTED) & (name != awaited if awaited is not None else True)
        if not at_once.any():
            return rows
        doubled = np.repeat(rows, 1 + at_once)
        second = np.flatnonzero(at_once) + np.arange(1, np.count_nonzero(at_once) + 1)
        doubled["action"][second] = FREE_COMPLETED
        return doubled
