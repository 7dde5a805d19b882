"""Finds the function that gives the statistics of an accelerator's allocator, the cheapest that there is.

It is called after nearly every operator. torch's own functions sort and flatten what they get into a
dictionary of a hundred names, for 85 µs; the dictionaries that they get take 10 µs (a cloud machine).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

Stats = dict[str, Any]
"""Nested: `stats["allocated_bytes"]["all"]["current"]`. Empty while the allocator has not been used."""

StatsReader = Callable[[], Stats]

UNSERVED: Final = (RuntimeError, AssertionError, AttributeError, ValueError)
"""What torch and its modules for devices raise where they cannot be asked."""

_C: Any = torch._C  # torch's types for these are not declared


def stats_reader_of(device: torch.device) -> StatsReader | None:
    """A function that gives the statistics of this device's allocator; None if nobody keeps any.

    It was called once, so it works here: a pluggable allocator, say, has none and raises.
    """
    for find in (_from_accelerator, _from_module, _from_totals):
        with contextlib.suppress(Exception):  # a vendor's module may raise anything
            read = find(device)
            if read is not None:
                read()
                return read
    return None


def devices_in_use() -> Iterator[torch.device]:
    """The accelerators that this process has used until now, and may have."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return
    try:
        is_used = is_allocator_used(accelerator.type)
        count = torch.accelerator.device_count() if is_used else 0
    except UNSERVED:
        return
    yield from (torch.device(accelerator.type, index) for index in range(count))


def is_allocator_used(device_type: str) -> bool:
    """Whether anything was allocated on such a device; it is not the first that asks for its driver.

    Raises:
        RuntimeError, AttributeError: torch cannot say.
    """
    if _is_served(device_type):
        return bool(_C._accelerator_isAllocatorInitialized())
    return bool(torch.get_device_module(device_type).is_initialized())


def _is_served(device_type: str) -> bool:
    """Whether torch itself can ask this accelerator's allocator (since 2.9; not every vendor's)."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device_type:
        return False
    try:
        _C._accelerator_isAllocatorInitialized()
    except UNSERVED:
        return False
    return True


def _from_accelerator(device: torch.device) -> StatsReader | None:
    index = device.index or 0
    if not _is_served(device.type) or index >= torch.accelerator.device_count():
        return None
    is_used, read = _C._accelerator_isAllocatorInitialized, _C._accelerator_getDeviceStats
    return lambda: read(index) if is_used() else {}


def _from_module(device: torch.device) -> StatsReader | None:
    """`torch.npu.memory_stats_as_nested_dict` and the like: allocators that torch does not know."""
    module = _module(device)
    if module is None or not hasattr(module, "memory_stats_as_nested_dict"):
        return None
    return lambda: module.memory_stats_as_nested_dict(device) or {}


def _from_totals(device: torch.device) -> StatsReader | None:
    """`torch.hpu.memory_allocated` and the like: these and no more."""
    module = _module(device)
    if module is None or not hasattr(module, "memory_allocated"):
        return None
    allocated, peak = module.memory_allocated, getattr(module, "max_memory_allocated", None)
    reserved = getattr(module, "memory_reserved", None)

    def read() -> Stats:
        counter = {"current": allocated(device)} | ({} if peak is None else {"peak": peak(device)})
        stats: Stats = {"allocated_bytes": {"all": counter}}
        return (
            stats if reserved is None else stats | {"reserved_bytes": {"all": {"current": reserved(device)}}}
        )

    return read


def _module(device: torch.device) -> Any:
    """Torch's module for this kind of device; None where this process does not see the device."""
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device.type)
    is_visible = module.is_available() and (device.index or 0) < module.device_count()
    return module if is_visible else None
