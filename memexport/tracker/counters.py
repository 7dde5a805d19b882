"""What an accelerator's own allocator says: allocated, active and reserved bytes, retries and OOMs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memexport.model import Device

UNKNOWN = -1


@dataclass(frozen=True)
class Counters:
    """An allocator's counters in bytes; −1 where it does not keep one."""

    allocated: int
    active: int
    reserved: int


Reader = Callable[[], Counters]


@dataclass(frozen=True)
class Reading:
    """All that an allocator says at once; −1 for what it does not keep.

    Attributes:
        counters: now.
        peak: the most that was allocated, since the process began or the program last reset it.
        retries: how often it freed its cache and tried again.
    """

    counters: Counters
    peak: int
    retries: int


ReadingReader = Callable[[], Reading]


def reader_of(device: torch.device) -> Reader | None:
    """A function that reads the counters of this device's allocator.

    None for a device that has none (the CPU) or that this process cannot see (a simulated one).
    """
    try:
        return _reader_of(device)
    except (RuntimeError, AssertionError):
        return None


def reading_reader_of(device: torch.device, reader: Reader) -> ReadingReader:
    """A function that reads all that this device's allocator says, given the one that reads its counters."""
    if device.type not in ("cuda", "xpu"):
        return lambda: Reading(reader(), UNKNOWN, UNKNOWN)
    read = getattr(torch, device.type).memory_stats_as_nested_dict

    def read_all() -> Reading:
        stats = read(device)
        allocated = stats.get("allocated_bytes")
        peak = int(allocated["all"]["peak"]) if allocated else 0
        return Reading(_from_stats(stats), peak, int(stats.get("num_alloc_retries", 0)))

    return read_all


def retries_and_ooms(devices: list[torch.device]) -> tuple[int | None, int | None]:
    """How often these devices' allocators had to retry and failed; None where none of them counts that."""
    found = [stats for device in devices if (stats := _stats(device))]
    if not found:
        return None, None
    return (
        sum(int(stats.get("num_alloc_retries", 0)) for stats in found),
        sum(int(stats.get("num_ooms", 0)) for stats in found),
    )


def peak_of(device: torch.device) -> int | None:
    """The most bytes that this device's allocator has given out at once; None where it does not count."""
    counter = (_stats(device) or {}).get("allocated_bytes")
    return int(counter["all"]["peak"]) if counter else None


def describe(device: torch.device) -> Device:
    """The device with whatever its driver says of it."""
    plain = Device(device.type, device.index)
    if device.type not in ("cuda", "xpu"):
        return plain
    try:
        properties: Any = getattr(torch, device.type).get_device_properties(device)
    except (RuntimeError, AssertionError):
        return plain
    uuid = getattr(properties, "uuid", None)
    return Device(
        device.type,
        device.index,
        name=properties.name,
        uuid=None if uuid is None else str(uuid),
        capacity_bytes=int(properties.total_memory),
    )


def _reader_of(device: torch.device) -> Reader | None:
    match device.type:
        case "cuda" | "xpu":
            module: Any = getattr(torch, device.type)
            if not module.is_available() or (device.index or 0) >= module.device_count():
                return None
            read = module.memory_stats_as_nested_dict
            return lambda: _from_stats(read(device))
        case "mps":
            if not torch.backends.mps.is_available():
                return None
            return lambda: Counters(
                torch.mps.current_allocated_memory(), UNKNOWN, torch.mps.driver_allocated_memory()
            )
        case _:
            return None


def _from_stats(stats: dict[str, Any]) -> Counters:
    def current(name: str) -> int:
        counter = stats.get(name)
        return _known(counter["all"]["current"]) if counter else UNKNOWN

    if not stats:  # nothing has been allocated there yet
        return Counters(0, 0, 0)
    return Counters(current("allocated_bytes"), current("active_bytes"), current("reserved_bytes"))


def _known(value: Any) -> int:
    """A number of bytes; what cannot be one (not a number, negative, None) is unknown."""
    is_number = isinstance(value, (int, float)) and 0 <= value < 2**63
    return int(value) if is_number else UNKNOWN


def _stats(device: torch.device) -> dict[str, Any] | None:
    if device.type not in ("cuda", "xpu") or reader_of(device) is None:
        return None
    stats: dict[str, Any] = getattr(torch, device.type).memory_stats_as_nested_dict(device)
    return stats
