"""Every metric that memexport exports, live, from recordings and into files: the one place that names them.

Names follow OpenTelemetry's semantic conventions: a namespace, no unit in the name. What is nested
(allocated, active, reserved) is not summed, and so is three metrics.

https://opentelemetry.io/docs/specs/semconv/general/naming/
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

DEVICE: Final = "memexport.device"
CATEGORY: Final = "memexport.category"
MODULE: Final = "memexport.module"
PHASE: Final = "memexport.phase"
GPU: Final = ("hw.id", "hw.name", "hw.vendor")

SCOPE: Final = "memexport"
"""The name of the instrumentation scope."""

OTHER: Final = "other"
"""The module or device that stands for all that have no series of their own."""
NO_MODULE: Final = "none"
"""The module of bytes that no module allocated."""

MAX_SERIES: Final = 1_000
"""Fewer attribute sets than this has every metric of a process. An SDK keeps 2000 and merges the rest."""


class Instrument(enum.Enum):
    """How the values of a metric are to be read."""

    UP_DOWN_COUNTER = "up-down counter"
    """A total that goes up and down; series add up."""
    GAUGE = "gauge"
    COUNTER = "counter"
    """A total that only grows while a recording lasts."""
    HISTOGRAM = "histogram"
    """A distribution, in base-2 exponential buckets."""


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        unit: in UCUM: By, s, {operator}.
        attributes: the keys of its attributes. A series leaves out what the recording does not say: of which
            device retries and failures were, a GPU's name.
    """

    name: str
    instrument: Instrument
    unit: str
    description: str
    attributes: tuple[str, ...] = ()


def _level(name: str, description: str, *attributes: str) -> Metric:
    return Metric(name, Instrument.UP_DOWN_COUNTER, "By", description, attributes)


def _peak(name: str) -> Metric:
    description = f"Most bytes {name} since the last collection."
    return Metric(f"memexport.memory.{name}.peak", Instrument.GAUGE, "By", description, (DEVICE,))


def _count(name: str, unit: str, description: str) -> Metric:
    return Metric(f"memexport.{name}", Instrument.COUNTER, unit, description, (DEVICE,))


ALLOCATED: Final = _level("memexport.memory.allocated", "Bytes allocated to tensors.", DEVICE)
ACTIVE: Final = _level(
    "memexport.memory.active", "Bytes allocated, or freed but still awaited by a stream.", DEVICE
)
RESERVED: Final = _level(
    "memexport.memory.reserved", "Bytes that the caching allocator holds, in use or not.", DEVICE
)
ALLOCATED_PEAK: Final = _peak("allocated")
ACTIVE_PEAK: Final = _peak("active")
RESERVED_PEAK: Final = _peak("reserved")
USAGE: Final = _level(
    "memexport.memory.usage",
    "Allocated bytes by what they are for; the sum over all categories is memexport.memory.allocated.",
    DEVICE,
    CATEGORY,
)
MODULE_USAGE: Final = _level(
    "memexport.module.memory.usage",
    "Allocated bytes by the module that allocated them; the sum is memexport.memory.allocated.",
    DEVICE,
    MODULE,
    CATEGORY,
)
ALLOCATION_SIZE: Final = Metric(
    "memexport.operator.allocation.size",
    Instrument.HISTOGRAM,
    "By",
    "Sizes of the allocations that operators make.",
    (DEVICE, PHASE),
)
STEP_DURATION: Final = Metric(
    "memexport.step.duration",
    Instrument.HISTOGRAM,
    "s",
    "Durations of the training steps in which the device worked.",
    (DEVICE,),
)
STEP_PEAK: Final = Metric(
    "memexport.step.memory.peak",
    Instrument.HISTOGRAM,
    "By",
    "Most bytes allocated during each training step in which the device worked.",
    (DEVICE,),
)
OPERATORS: Final = _count("operators", "{operator}", "Operators that were dispatched.")
RETRIES: Final = _count(
    "allocation.retries", "{retry}", "Allocations that succeeded only after the allocator freed its cache."
)
OOMS: Final = _count("ooms", "{oom}", "Allocations that failed for lack of memory.")
DROPPED: Final = Metric(
    "memexport.events.dropped", Instrument.COUNTER, "{event}", "Events that were seen but not recorded."
)
GPU_USAGE: Final = _level("hw.gpu.memory.usage", "Memory of the GPU in use, by all processes.", *GPU)
GPU_LIMIT: Final = _level("hw.gpu.memory.limit", "Memory that the GPU has.", *GPU)
PROCESS: Final = _level("process.memory.usage", "Physical memory that the process has in use.")

METRICS: Final = (
    ALLOCATED,
    ACTIVE,
    RESERVED,
    ALLOCATED_PEAK,
    ACTIVE_PEAK,
    RESERVED_PEAK,
    USAGE,
    MODULE_USAGE,
    ALLOCATION_SIZE,
    STEP_DURATION,
    STEP_PEAK,
    OPERATORS,
    RETRIES,
    OOMS,
    DROPPED,
    GPU_USAGE,
    GPU_LIMIT,
    PROCESS,
)  # fmt: skip
"""All of them, in the order in which they are exported."""

LEVELS: Final = {"allocated": ALLOCATED, "active": ACTIVE, "reserved": RESERVED}
PEAKS: Final = {"allocated": ALLOCATED_PEAK, "active": ACTIVE_PEAK, "reserved": RESERVED_PEAK}
"""The metrics of each counter of the model."""
