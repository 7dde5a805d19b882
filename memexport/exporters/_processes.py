"""What the processes and threads of a trace are called, and their numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from memexport.model import EventBatch, RecordingInfo, StringTable

_UNKNOWN_PID: Final = 1
# Ranks whose pid is not recorded get one above what Linux gives out (at most 4 194 304).
_FIRST_MADE_UP_PID: Final = 5_000_000
_PIDS_BETWEEN_RANKS: Final = 100_000
# A trace keeps a pid in 32 bits. No two ranks get the same one: this and the distance have no common divisor.
_MADE_UP_PIDS: Final = 2**31 - 1 - _FIRST_MADE_UP_PID - _PIDS_BETWEEN_RANKS


class Processes:
    """One process for each rank of a recording; rank −1, the unknown one, is the recording's own."""

    def __init__(self, info: RecordingInfo, strings: StringTable) -> None:
        self._info = info
        self._strings = strings
        self._threads: dict[int, list[int]] = {}

    def known_rank(self, rank: int) -> int:
        """The rank of a column, where an unknown one is the recording's own; −1 if that is unknown too."""
        return self._info.rank if rank < 0 and self._info.rank is not None else rank

    def pid(self, rank: int) -> int:
        """The recorded number, else a made-up one."""
        if self.is_own(rank):
            return self._info.pid or _UNKNOWN_PID
        return _FIRST_MADE_UP_PID + _PIDS_BETWEEN_RANKS * rank % _MADE_UP_PIDS

    def is_own(self, rank: int) -> bool:
        """Whether it is the process that `RecordingInfo` describes."""
        return rank < 0 or rank == self._info.rank

    def name(self, rank: int) -> str:
        """The rank where it is known, unless it has a name of its own; else the program."""
        if (rank := self.known_rank(rank)) >= 0:
            return self._info.rank_names.get(rank, f"rank {rank}")
        command = self._info.command_line
        return PurePath(command[0]).name if command else self._info.producer or "process"

    def sorting_name(self, rank: int) -> str:
        """The same for a known rank, such that rank 2 comes before rank 10 by name."""
        return self._info.rank_names.get(rank, f"rank {rank:02}")

    def thread_place(self, rank: int, thread: int) -> int:
        """Threads by string id, counted from 0, the main one: that is the first seen, and the null thread."""
        known = self._threads.setdefault(self.known_rank(rank), [])
        if thread and thread not in known:
            known.append(thread)
        return known.index(thread) if thread else 0

    def thread_name(self, thread: int) -> str:
        """The name, from its string id."""
        name: str = self._strings[thread] if thread else "main"
        return name

    def counter_name(self, device: int, counter: str) -> str:
        """The counter with the device it is of."""
        return f"{self.device_name(device)} {counter}" if device >= 0 else counter

    def device_name(self, device: int) -> str:
        """What torch calls the device, from its place in the recording's list."""
        known = 0 <= device < len(self._info.devices)
        return str(self._info.devices[device]) if known else f"device {device}"


def thread_tracks(events: EventBatch, track_of: Callable[[int, int], int]) -> npt.NDArray[np.int64]:
    """The track of each event: what `track_of(rank, thread)` says, asked once for each thread in order."""
    codes = events.rank.astype(np.int64) << 32 | events.thread
    found, first, place = _distinct(codes)
    tracks = np.empty(len(found), np.int64)
    for row in np.argsort(first).tolist():
        code = int(found[row])
        tracks[row] = track_of(code >> 32, code & 0xFFFFFFFF)
    of_events: npt.NDArray[np.int64] = tracks[place]
    return of_events


def _distinct(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """What np.unique finds, without sorting where there is but one code."""
    if len(codes) and (codes == codes[0]).all():
        return codes[:1], np.zeros(1, np.intp), np.zeros(len(codes), np.intp)
    return np.unique(codes, return_index=True, return_inverse=True)
