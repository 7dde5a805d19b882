"""What was alive when recording paused, so that it is known again when recording goes on."""

from __future__ import annotations

import time

import torch

from memexport.tracker import rows
from memexport.tracker.running import Running
from memexport.tracker.storages import RELEASED_EARLY, StorageRef, Storages


class Survivors:
    """Takes the storages that are followed, and gives those that still live back.

    In between, nothing of ours runs when one of them dies: the weak references have no callback.

    Args:
        storages: those that are followed.
        running: what is running, where recording goes on.
        log_bytes: where rows go.
    """

    def __init__(self, storages: Storages, running: Running, log_bytes: bytearray) -> None:
        self._storages = storages
        self._running = running
        self._push = log_bytes.extend
        self._kept: list[StorageRef] = []

    def keep(self) -> None:
        """Follow none of them any more."""
        live = self._storages.live
        for key in list(live):
            # Whoever takes it out of `live` logs its release: the callback may run in another thread.
            known = live.pop(key, None)
            storage = known() if known is not None else None
            if storage is not None and known is not None:
                self._kept.append(_copy(known, StorageRef(storage)))
            elif known is not None:
                self._log_release(known)

    def give_back(self) -> None:
        """Follow those that live, and log the release of the others: they died since `keep`."""
        kept, self._kept = self._kept, []
        alive = []
        for known in kept:
            storage = known()
            if storage is None:
                self._log_release(known)
            else:
                alive.append((known, storage))
        for known, storage in alive:
            self._follow(known, storage)

    def _follow(self, known: StorageRef, storage: torch.UntypedStorage) -> None:
        followed = _copy(known, StorageRef(storage, self._storages.released_on(known.device)))
        self._storages.live[known.release[0]] = followed
        self._storages.resized(followed, int(storage.nbytes()))

    def _log_release(self, known: StorageRef) -> None:
        if known.size != RELEASED_EARLY:
            _, code, number = known.release
            context = self._running.thread().context
            self._push(rows.ROW.pack(code, context, time.perf_counter_ns(), known.size, number))


def _copy(known: StorageRef, other: StorageRef) -> StorageRef:
    other.device, other.size, other.release = known.device, known.size, known.release
    if getattr(known, "placed", False):
        other.placed = True
    return other
