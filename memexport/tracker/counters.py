"""What an accelerator's own allocator says: allocated, active and reserved bytes, retries and OOMs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from memexport.model import Device
from memexport.tracker.allocator_stats import UNSERVED, Stats, devices_in_use, stats_reader_of

UNKNOWN: Final = -1


class Counters(NamedTuple):
    """An allocator's counters in bytes; −1 where it does not keep one.

    `peak` is the most that was allocated at once, since the process began or the program last reset it.
    """

    allocated: int
    active: int
    reserved: int
    peak: int = UNKNOWN


Reader = Callable[[], Counters]


@dataclass(frozen=True)
class Reading:
    """All that an allocator says at once; −1 for what it does not keep.

    Attributes:
        counters: now.
        retries: how often it freed its cache and tried again.
    """

    counters: Counters
    retries: int


ReadingReader = Callable[[], Reading]


def reader_of(device: torch.device) -> Reader | None:
    """A function that reads the counters of this device's allocator.

    None for a device that has none (the CPU) or that this process cannot see (a simulated one).
    """
    if device.type == "mps":
        return _mps_reader()
    read = stats_reader_of(device)
    return None if read is None else lambda: _from_stats(read())


def reading_reader_of(device: torch.device, reader: Reader) -> ReadingReader:
    """A function that reads all that this device's allocator says, given the one that reads its counters."""
    read = None if device.type == "mps" else stats_reader_of(device)
    if read is None:
        return lambda: Reading(reader(), UNKNOWN)

    def read_all() -> Reading:
        stats = read()
        return Reading(_from_stats(stats), int(stats.get("num_alloc_retries", 0)))

    return read_all


def retries_and_ooms(device: torch.device) -> tuple[int | None, int | None]:
    """How often this device's allocator had to retry, and failed; None where it does not count that."""
    stats = _stats(device)
    if "num_alloc_retries" not in stats:
        return None, None
    return int(stats["num_alloc_retries"]), int(stats.get("num_ooms", 0))


class Failures:
    """How often allocators retried and failed in a recording: they count for as long as the process runs."""

    def __init__(self) -> None:
        self._before = {device: retries_and_ooms(device) for device in devices_in_use()}

    def since_start(self, devices: list[torch.device]) -> tuple[int | None, int | None]:
        """Retries and OOMs of these devices; None where none of them counts that."""
        found = [(retries_and_ooms(device), self._before.get(device, (0, 0))) for device in devices]
        retries = [_more(now[0], before[0]) for now, before in found if now[0] is not None]
        ooms = [_more(now[1], before[1]) for now, before in found if now[1] is not None]
        return sum(retries) if retries else None, sum(ooms) if ooms else None


def counters_in_use() -> dict[torch.device, Counters]:
    """What the allocators of all devices that this process has used say now."""
    readers = ((device, reader_of(device)) for device in devices_in_use())
    return {device: read() for device, read in readers if read is not None}


def peak_of(device: torch.device) -> int | None:
    """The most bytes that this device's allocator has given out at once; None where it does not count."""
    stats = _stats(device)
    peak = _from_stats(stats).peak if stats else UNKNOWN
    return None if peak == UNKNOWN else peak


def describe(device: torch.device) -> Device:
    """The device with whatever its driver says of it."""
    plain = Device(device.type, device.index)
    if device.type in ("cpu", "mps"):
        return plain
    try:
        module: Any = torch.get_device_module(device.type)
        if not hasattr(module, "get_device_properties"):
            _, total = torch.accelerator.get_memory_info(device)
            return Device(device.type, device.index, capacity_bytes=total)
        properties = module.get_device_properties(device)
    except UNSERVED:
        return plain
    uuid, capacity = getattr(properties, "uuid", None), getattr(properties, "total_memory", None)
    return Device(
        device.type,
        device.index,
        name=getattr(properties, "name", None),
        uuid=None if uuid is None else str(uuid),
        capacity_bytes=None if capacity is None else int(capacity),
    )


def _more(now: int, before: int | None) -> int:
    """Since `before`; the program may have reset the count."""
    return now - before if before is not None and now >= before else now


def _mps_reader() -> Reader | None:
    if not torch.backends.mps.is_available():
        return None
    allocated, reserved = torch.mps.current_allocated_memory, torch.mps.driver_allocated_memory
    return lambda: Counters(allocated(), UNKNOWN, reserved())


def _from_stats(stats: Stats) -> Counters:
    if not stats:  # nothing has been allocated there yet
        return Counters(0, 0, 0, 0)
    allocated = _all(stats, "allocated_bytes")
    return Counters(
        _known(allocated.get("current")),
        _known(_all(stats, "active_bytes").get("current")),
        _known(_all(stats, "reserved_bytes").get("current")),
        _known(allocated.get("peak")),
    )


def _all(stats: Stats, name: str) -> Stats:
    """Of all pools together; nothing for a counter that is not kept."""
    counter = stats.get(name)
    found: Stats = counter["all"] if counter else {}
    return found


def _known(value: Any) -> int:
    """A number of bytes; what cannot be one (not a number, negative, None) is unknown."""
    if type(value) is int:  # nearly always
        return value if 0 <= value < 2**63 else UNKNOWN
    return int(value) if isinstance(value, float) and 0 <= value < 2**63 else UNKNOWN


def _stats(device: torch.device) -> Stats:
    read = None if device.type in ("cpu", "mps") else stats_reader_of(device)
    return {} if read is None else read()
