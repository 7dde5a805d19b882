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

from memexport.tracker import rows
from memexport.tracker.allocators import Allocators
from memexport.tracker.rows import DEVICE_UNIT, Labels
from memexport.tracker.running import Running
from memexport.tracker.threads import Thread, graph_task

RELEASE_AFTER_ALLOCATION: Final = rows.RELEASE - rows.ALLOCATION
"""What makes the code of a RELEASE from that of its ALLOCATION."""

PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that are not made of other tensors."""

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
        allocators: of these devices.
        next_number: numbers storages.
        released: logs that a storage gives its memory back; weak references call it.
    """

    def __init__(self, labels: Labels, running: Running, log_bytes: bytearray, *, fake: bool) -> None:
        self.live: dict[int, StorageRef] = {}
        self.devices: list[torch.device] = [torch.device("cpu")]
        self.allocators = Allocators(labels, log_bytes.extend, fake=fake)
        self.next_number = itertools.count(1).__next__
        self._running = running
        self._push = log_bytes.extend
        self._growing = threading.RLock()
        self._own_resize: Callable[..., Any] | None = None
        self.released = self._release_function()
        self._released_on = {0: self.released}

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

    def released_on(self, device: int) -> Callable[[StorageRef], None]:
        """What a weak reference to a storage of the device with this code calls: `released`, at least."""
        found = self._released_on.get(device)
        if found is None:
            found = self._released_on[device] = self._release_function_on(device)
        return found

    def _release_function_on(self, device: int) -> Callable[[StorageRef], None]:
        released, moved = self.released, self.allocators.moved

        def released_there(storage: StorageRef) -> None:
            moved.add(device)
            released(storage)

        return released_there

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
        found = StorageRef(storage, self.released_on(device))
        self.allocators.moved.add(device)
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
        self.allocators.moved.add(storage.device)
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
                self.allocators.add(device)
                self.devices.append(device)
            return self.devices.index(device) * DEVICE_UNIT

    def sample(self) -> None:
        """Log the counters of every device that has them."""
        self.allocators.sample(self._running.thread().context)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts; of a tensor subclass made of tensors, those."""
    if isinstance(value, torch.Tensor):
        if type(value) not in PLAIN and is_traceable_wrapper_subclass(value):
            for name in value.__tensor_flatten__()[0]:
                yield from tensors_in(getattr(value, name))
        else:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            if type(item) in PLAIN:  # the commonest, without one more generator
                yield item
            else:
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


def tensor_bytes(told: tuple[Any, Any, Any]) -> tuple[int, int]:
    """Of a module call's arguments, keyword arguments and result: what went in and what came out."""
    arguments, keywords, result = told
    return storage_bytes((arguments, keywords) if keywords else arguments), storage_bytes(result)


def storage_bytes(value: Any) -> int:
    """The storages of the tensors in it, each counted once and whole, in bytes; −1 if one has no storage."""
    if type(value) is tuple and len(value) == 1:
        value = value[0]
    if type(value) in PLAIN:  # the commonest case: nothing to look through, nothing to count twice
        storage = storage_of(value)
        return -1 if storage is None else 0 if value.is_meta else storage.nbytes()
    sizes: dict[int, int] = {}
    for tensor in tensors_in(value):
        storage = storage_of(tensor)
        if storage is None:
            return -1
        if not tensor.is_meta:
            sizes[id(storage)] = storage.nbytes()
    return sum(sizes.values())
