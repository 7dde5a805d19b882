"""What to try next, from what a summary says: only where its figures support it, and with the figure.

Each rule is a function of its own; what it takes for "much" stands right before it. Shares are of the peak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from memexport.analysis.breakdown import LiveBytes, ModuleBytes
from memexport.analysis.growth import DeviceGrowth
from memexport.analysis.text import human_bytes

if TYPE_CHECKING:
    from memexport.analysis.device_summary import DeviceSummary

_NAMED: Final = 3
"""How many modules a piece of advice names."""

_SMALLEST_PEAK_BYTES: Final = 1 << 20
"""Below it nobody is short of memory."""


@dataclass(frozen=True)
class Advice:
    """Something to try.

    Attributes:
        topic: a short fixed name: "activations", "optimizer_state", "fragmentation", ...
        device: which it is about; None for all.
        bytes: the figure that it rests on: what it is about holds, wastes or grows by so much.
        text: one or two sentences.
        modules: whom it names, with their bytes.
    """

    topic: str
    device: str | None
    bytes: int
    text: str
    modules: tuple[ModuleBytes, ...] = ()


def advise(
    format_name: str,
    devices: Mapping[str, DeviceSummary],
    growth: Mapping[str, DeviceGrowth | None],
    alloc_retries: int | None,
) -> tuple[Advice, ...]:
    """Everything that the figures support: leaks first, then what holds most of the largest peak."""
    found: list[Advice] = []
    for name, device in devices.items():
        found += _about_growth(name, growth.get(name))
        found += sorted(_about_peak(format_name, name, device), key=lambda one: -one.bytes)
    if alloc_retries:
        found += _about_retries(alloc_retries, devices)
    return tuple(found)


def _about_peak(format_name: str, name: str, device: DeviceSummary) -> Iterator[Advice]:
    peak = sum(device.categories_at_peak.values())
    if peak < _SMALLEST_PEAK_BYTES:
        return
    yield from _activations(name, device, peak)
    yield from _optimizer_state(name, device, peak)
    yield from _gradients_in_forward(name, device, peak)
    yield from _one_large_module(name, device, peak)
    yield from _fragmentation(name, device)
    yield from _unattributed(format_name, name, device, peak)


_MUCH_ACTIVATION: Final = 0.4


def _activations(name: str, device: DeviceSummary, peak: int) -> Iterator[Advice]:
    held = device.categories_at_peak.get("activation", 0)
    modules = _blocks(row for row in device.live_at_peak if row.category == "activation")[:_NAMED]
    if held < _MUCH_ACTIVATION * peak or not modules:
        return
    text = (
        f"Activations hold {_share(held, peak)}. Checkpointing (torch.utils.checkpoint) these modules would"
        f" free up to: {_listed(modules)}; their forward then runs twice."
    )
    yield Advice("activations", name, held, text, modules)


def _blocks(rows: Iterable[LiveBytes]) -> tuple[ModuleBytes, ...]:
    """What the modules that are worth a checkpoint hold, with those below them, the largest first.

    That are the outermost elements of lists of modules ("blocks.3", "layer2.0"); without any, the modules
    themselves.
    """
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.module:
            sums[_block(row.module)] += row.bytes
    numbered = {module: size for module, size in sums.items() if _is_number(module.rpartition(".")[2])}
    ordered = sorted((numbered or sums).items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(ModuleBytes(module, size) for module, size in ordered)


def _block(module: str) -> str:
    """Its outermost part that is an element of a list; the module itself if none is."""
    parts = module.split(".")
    for length, part in enumerate(parts, 1):
        if _is_number(part):
            return ".".join(parts[:length])
    return module


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit()


_MUCH_STATE: Final = 0.25


def _optimizer_state(name: str, device: DeviceSummary, peak: int) -> Iterator[Advice]:
    held = device.categories_at_peak.get("optimizer_state", 0)
    if held < _MUCH_STATE * peak:
        return
    text = (
        f"Optimizer state holds {_share(held, peak)}. Sharding it over n ranks (FSDP2's fully_shard, or"
        f" ZeroRedundancyOptimizer) leaves 1/n of that on each; 8-bit states (torchao, bitsandbytes) would"
        f" take about {human_bytes(held // 4)} if these are 32-bit ones."
    )
    yield Advice("optimizer_state", name, held, text)


_MUCH_GRADIENT: Final = 0.1


def _gradients_in_forward(name: str, device: DeviceSummary, peak: int) -> Iterator[Advice]:
    """In backward gradients are where they belong; in a forward they are those of the step before."""
    held = device.categories_at_peak.get("gradient", 0)
    if device.peak_phase != "forward" or held < _MUCH_GRADIENT * peak:
        return
    text = (
        f"Gradients of earlier work hold {_share(held, peak)}, and the peak is in forward. Unless they are"
        " accumulated, optimizer.zero_grad(set_to_none=True) before the forward frees them."
    )
    yield Advice("gradients", name, held, text)


_MUCH_OF_PARAMETERS: Final = 0.5
_MUCH_PARAMETER: Final = 0.2


def _one_large_module(name: str, device: DeviceSummary, peak: int) -> Iterator[Advice]:
    """One module, an embedding as a rule, that has more parameters than all others together."""
    sums: dict[str, int] = defaultdict(int)
    for row in device.live_at_peak:
        if row.category == "parameter":
            sums[row.module or ""] += row.bytes
    module, held = max(sums.items(), key=lambda pair: pair[1], default=("", 0))
    if not module or held < max(_MUCH_OF_PARAMETERS * sum(sums.values()), _MUCH_PARAMETER * peak):
        return
    text = (
        f"The parameters of {module} hold {_share(held, peak)}, more than those of all other modules: a"
        " smaller type (bfloat16) halves 32-bit ones, sharding divides them."
    )
    yield Advice("parameters", name, held, text, (ModuleBytes(module, held),))


_MUCH_UNUSED: Final = 0.2
_LEAST_UNUSED_BYTES: Final = 64 << 20


def _fragmentation(name: str, device: DeviceSummary) -> Iterator[Advice]:
    unused, reserved = device.fragmentation_at_peak, device.reserved_at_peak
    if unused is None or reserved is None or unused < max(_MUCH_UNUSED * reserved, _LEAST_UNUSED_BYTES):
        return
    text = (
        f"{human_bytes(unused)} of {human_bytes(reserved)} reserved ({unused / reserved:.0%}) were not active"
        " at the peak. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the allocator use such gaps."
    )
    yield Advice("fragmentation", name, unused, text)


_MUCH_UNATTRIBUTED: Final = 0.3
_SEES_MORE: Final = {
    "memexport.archive": (
        "On the CPU and one CUDA device, memexport run --capture allocator"
        ' (Tracker(capture="allocator")) sees what operators use inside; what was allocated before the'
        " tracker started, or by libraries on a device, nobody named."
    ),
    "torch.memory_tracker": "This format has no categories; memexport run records them.",
    "torch.cuda.snapshot": (
        "A snapshot has no categories, and this one no stacks:"
        ' torch.cuda.memory._record_memory_history(stacks="all") before the run records them.'
    ),
    "kineto": "This trace has no categories for it; memexport run records them.",
}


def _unattributed(format_name: str, name: str, device: DeviceSummary, peak: int) -> Iterator[Advice]:
    held = device.categories_at_peak.get("unattributed", 0)
    more = _SEES_MORE.get(format_name)
    if held < _MUCH_UNATTRIBUTED * peak or more is None or device.stacks_at_peak:
        return
    yield Advice("unattributed", name, held, f"Nothing says whose {_share(held, peak)} are. {more}")


def _about_growth(name: str, growth: DeviceGrowth | None) -> Iterator[Advice]:
    if growth is None:
        return
    modules = tuple(
        ModuleBytes(row.module, row.trend.bytes_per_step) for row in growth.suspects if row.module
    )[:_NAMED]
    if not growth.total.is_suspicious and not modules:
        return
    slope = growth.total.bytes_per_step if growth.total.is_suspicious else sum(row.bytes for row in modules)
    where = f", of {_listed(modules)}" if modules else ""
    text = (
        f"{human_bytes(slope)} more are live after each step{where}. Look for tensors kept from step to step:"
        " lists of outputs, a loss without .item() or .detach(), hooks and caches."
    )
    yield Advice("growth", name, slope, text, modules)


def _about_retries(alloc_retries: int, devices: Mapping[str, DeviceSummary]) -> Iterator[Advice]:
    peaks = [device.reserved.peak for device in devices.values() if device.reserved is not None]
    if not peaks:
        return
    times = "once" if alloc_retries == 1 else f"{alloc_retries:,} times"
    text = (
        f"The allocator ran out of memory and emptied its cache {times}, with {human_bytes(max(peaks))}"
        " reserved at most; each time the device waits. A smaller batch, or what is advised above, avoids it."
    )
    yield Advice("allocation_retries", None, max(peaks), text)


def _share(held: int, peak: int) -> str:
    return f"{human_bytes(held)} ({held / peak:.0%} of the peak)"


def _listed(modules: Iterable[ModuleBytes]) -> str:
    return ", ".join(f"{row.module} ({human_bytes(row.bytes)})" for row in modules)
