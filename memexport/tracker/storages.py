"""Every storage that is alive: found when an operator returns it, followed until it dies.

A weak reference to a storage's Python object says when its memory is given back, on any device, simulated
ones too.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memexport.tracker import counters, rows
from memexport.tracker.rows import DEVICE_UNIT, Labels
from memexport.tracker.running import Running, Thread, graph_task

RELEASE_AFTER_ALLOCATION: Final = rows.RELEASE - rows.ALLOCATION
"""What makes the code of a RELEASE from that of its ALLOCATION."""

RELEASED_EARLY: Final = -1
"""The size of a storage that lives on without memory: sharding frees a parameter's that way."""


class StorageRef(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a live storage, and what its RELEASE row will say."""

    __slots__ = ("device", "placed", "release", "size")

    device: int
    size: int
    release: tuple[int, int, int]
    """Its key in `Storages.live`, the row's code, the storage's number."""
    placed: bool
    """Whether its module was logged; not set, to save time, while nobody claimed it."""


class Storages:
    """Logs when storages are allocated and released, and on which device.

    Args:
        labels: what the rows' codes and contexts stand for.
        running: what is running in each thread.
        log_bytes: where rows go.
        fake: tensors are simulated, and no allocator is asked.

    Attributes:
        live: by the id of the storage, what is alive.
        devices: torch's devices in the order of the column `device`.
        readers: of each device's allocator; None for a device that has none to ask.
        next_number: numbers storages.
        released: logs that a storage gives its memory back; weak references call it.
    """

    def __init__(self, labels: Labels, running: Running, log_bytes: bytearray, *, fake: bool) -> None:
        self.live: dict[int, StorageRef] = {}
        self.devices: list[torch.device] = [torch.device("cpu")]
        self.readers: list[counters.Reader | None] = [None]
        self.next_number = itertools.count(1).__next__
        self._labels = labels
        self._running = running
        self._push = log_bytes.extend
        self._fake = fake
        self._growing = threading.RLock()
        self._own_resize: Callable[..., Any] | None = None
        self.released = self._release_function()

    def _release_function(self) -> Callable[[StorageRef], None]:
        running, live = self._running, self.live
        push, pack = self._push, rows.ROW.pack
        threads, current_thread = running.threads, threading.get_ident
        clock, current_task = time.perf_counter_ns, graph_task

        def released(storage: StorageRef) -> None:
            key, code, number = storage.release
            if live.pop(key, None) is None:
                return
            size = storage.size
            if size == RELEASED_EARLY:
                return
            thread = threads.get(current_thread()) or running.thread()
            thread.net -= size
            # In backward, that of the last operator: the node that held the storage has just ended.
            context = thread.context if current_task() == thread.task else thread.backward_context
            push(pack(code, context, clock(), size, number))

        return released

    def found(
        self,
        storage: torch.UntypedStorage,
        tensor: torch.Tensor,
        code: int,
        context: int,
        now: int,
        thread: Thread,
    ) -> StorageRef | None:
        """A storage not seen before: log its allocation and wait for its release."""
        size = int(storage.nbytes())
        device = 0 if type(tensor) is torch.Tensor and tensor.is_cpu else self.device_code(tensor.device)
        if device < 0:
            return None
        found = StorageRef(storage, self.released)
        number = self.next_number()
        key = id(storage)
        found.device = device
        found.size = size
        found.release = (key, code + device + RELEASE_AFTER_ALLOCATION, number)
        self.live[key] = found
        thread.net += size
        self._push(rows.ROW.pack(code + device, context, now, size, number))
        return found

    def known(self, tensor: torch.Tensor) -> StorageRef | None:
        """The storage of a tensor, if it is followed."""
        storage = storage_of(tensor)
        return self.live.get(id(storage)) if storage is not None else None

    def watch_resizing(self, fail: Callable[[Exception], None]) -> None:
        """Stand in for `UntypedStorage.resize_`, which is no operator, so that a mode is not told of it.

        Sharding frees and allocates whole parameters by it. `fail` is told of an error of our own.
        """
        resize, live = torch.UntypedStorage.resize_, self.live

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            try:
                known = live.get(id(storage))
                if known is not None:
                    self.resized(known, int(storage.nbytes()))
            except Exception as error:
                fail(error)
            return result

        self._own_resize = resize_
        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]  # put back below

    def stop_watching_resizing(self) -> None:
        """Put torch's own function back. Calling it twice does nothing."""
        if torch.UntypedStorage.__dict__.get("resize_") is self._own_resize is not None:
            del torch.UntypedStorage.resize_

    def resized(self, storage: StorageRef, size: int) -> None:
        """Log that a live storage gave its memory back, or got other memory."""
        if size == max(storage.size, 0):
            return
        thread = self._running.thread()
        context = thread.context if graph_task() == thread.task else thread.backward_context
        key, code, number = storage.release
        now = time.perf_counter_ns()
        if storage.size != RELEASED_EARLY:
            thread.net -= storage.size
            self._push(rows.ROW.pack(code, context, now, storage.size, number))
        storage.size = size or RELEASED_EARLY
        if size:
            number = self.next_number()
            storage.release = (key, code, number)
            thread.net += size
            code -= RELEASE_AFTER_ALLOCATION
            self._push(rows.ROW.pack(code, context, now, size, number))

    def device_code(self, device: torch.device) -> int:
        """The device as part of a code (its index × DEVICE_UNIT); −1 where tensors take no memory."""
        if device.type == "meta":
            return -1
        if device.type == "cpu":
            return 0
        with self._growing:
            if device not in self.devices:
                if len(self.devices) == rows.MAX_DEVICES:
                    raise RuntimeError(f"more than {rows.MAX_DEVICES} devices in one process")
                self.readers.append(None if self._fake else counters.reader_of(device))
                self.devices.append(device)
            return self.devices.index(device) * DEVICE_UNIT

    def counters_row(self, device: int, context: int) -> bytes:
        """What a device's allocator says now; no row for a device that has none to ask."""
        reader = self.readers[device // DEVICE_UNIT]
        if reader is None:
            return b""
        read = reader()
        return rows.ROW.pack(device + rows.COUNTERS, context, read.allocated, read.active, read.reserved)

    def sample(self) -> None:
        """Log the counters of every device that has them."""
        context = self._running.thread().context
        code = self._labels.code(rows.SAMPLE, None)
        for device in range(0, len(self.devices) * DEVICE_UNIT, DEVICE_UNIT):
            counters_row = self.counters_row(device, context)
            if counters_row:
                row = rows.ROW.pack(code + device, context, time.perf_counter_ns(), 0, 0)
                self._push(row + counters_row)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts; of a tensor subclass made of tensors, those."""
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor and is_traceable_wrapper_subclass(value):
            for name in value.__tensor_flatten__()[0]:
                yield from tensors_in(getattr(value, name))
        else:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor, None for layouts that have none of their own (sparse, opaque)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # ValueError: a LazyModule's parameter
        return None
