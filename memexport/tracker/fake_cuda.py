"""`torch.cuda` on a machine without CUDA: what a program asks of it when it runs on simulated tensors.

Only what has an answer without a device. Streams and events order nothing, for nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from memexport.tracker.fake_calls import called_by_program
from memexport.tracker.replaced import Replacements

NAME: Final = "simulated CUDA device"
CAPABILITY: Final = (8, 0)
"""Ampere's: the oldest for which the attention kernels that are simulated are chosen."""
USUAL_MEMORY: Final = 80 << 30
"""What the device says it has if no budget is given."""
DEVICE: Final = torch.device("cuda", 0)


class Event:
    """Has always happened already."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """Nothing."""

    def wait(self, *_: Any) -> None:
        """Nothing."""

    def synchronize(self) -> None:
        """Nothing."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, _end: Event) -> float:
        """A millisecond, for programs divide by it."""
        return 1.0


class Stream:
    """Has nothing to do, ever. As a context, changes nothing."""

    cuda_stream = 0
    device = DEVICE
    stream_id = 0
    device_index = 0
    device_type = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, _stream: Stream) -> None:
        """Nothing."""

    def wait_event(self, _event: Event) -> None:
        """Nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """The event, or a new one."""
        return event or Event()

    def synchronize(self) -> None:
        """Nothing."""

    def query(self) -> bool:
        """All is done."""
        return True

    def is_capturing(self) -> bool:
        """It records no graph."""
        return False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_STREAM: Final = Stream()


class _AnyGenerator(type(torch.Generator)):  # type: ignore[misc]  # a class of torch's own C code
    """torch's own generators are of the class that stands in for theirs, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


_Generator: Final = torch.Generator


class Generator(torch.Generator, metaclass=_AnyGenerator):
    """Generates on the CPU, whatever device it is for."""

    def __new__(cls, device: Any = "cpu") -> Generator:  # noqa: ARG004 - torch's own signature
        """A generator of the CPU."""
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's stub only has __init__


Counters = Callable[[], Mapping[str, int]]
"""The simulated allocator's: "allocated", "reserved", "peak_allocated", "peak_reserved"."""


def stand_in(
    replacements: Replacements,
    *,
    device_count: int,
    total_memory: int,
    counters: Counters,
    program_decides: Callable[[], None],
) -> None:
    """Let `torch.cuda` and `torch.accelerator` answer as if there were devices.

    Args:
        replacements: undoes it.
        device_count: how many.
        total_memory: of each, in bytes.
        counters: for `torch.cuda.memory_allocated` and the like.
        program_decides: called when the program asks whether there is CUDA.
    """
    answers = _about_devices(device_count, total_memory, program_decides)
    answers |= _about_memory(total_memory, counters) | _NOTHING_TO_DO
    for name, answer in answers.items():
        replacements.set(torch.cuda, name, answer)
        if hasattr(torch.cuda.memory, name):
            replacements.set(torch.cuda.memory, name, answer)
        if hasattr(torch.cuda.random, name):
            replacements.set(torch.cuda.random, name, answer)
    for name, answer in _about_accelerators(answers).items():
        replacements.set(torch.accelerator, name, answer)
    replacements.set(FakeTensor, "is_cuda", property(lambda tensor: tensor.fake_device.type == "cuda"))
    # All would ask the driver.
    replacements.set(fake_tensor, "init_gpu_context", _nothing)
    replacements.set(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
    replacements.set(torch._C, "_cuda_getCurrentStream", lambda _: (0, 0, 1))


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _about_devices(
    device_count: int, total_memory: int, program_decides: Callable[[], None]
) -> dict[str, Any]:
    def asked(answer: Any) -> Any:
        if called_by_program():
            program_decides()
        return answer

    major, minor = CAPABILITY
    properties = SimpleNamespace(
        name=NAME,
        major=major,
        minor=minor,
        total_memory=total_memory,
        multi_processor_count=108,
        warp_size=32,
        gcnArchName="",
        L2_cache_size=40 << 20,
    )
    return {
        "is_available": lambda: asked(True),
        "device_count": lambda: asked(device_count),
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: NAME,
        "get_device_capability": lambda *_: CAPABILITY,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_bf16_supported": lambda *_, **__: True,
        "_exchange_device": lambda *_: 0,
        "_maybe_exchange_device": lambda *_: 0,
        "Stream": Stream,
        "Event": Event,
        "stream": lambda stream: stream or _STREAM,
        "current_stream": lambda *_: _STREAM,
        "default_stream": lambda *_: _STREAM,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_, **__: torch.zeros(16, dtype=torch.uint8, device="cpu"),
        "get_rng_state_all": list,
        "initial_seed": lambda: 0,
        "utilization": lambda *_: 0,
    }


def _about_memory(total_memory: int, counters: Counters) -> dict[str, Any]:
    def counter(name: str) -> Callable[..., int]:
        return lambda *_, **__: counters()[name]

    def stats(*_: Any, **__: Any) -> dict[str, int]:
        now = counters()
        return {
            "allocated_bytes.all.current": now["allocated"],
            "allocated_bytes.all.peak": now["peak_allocated"],
            "active_bytes.all.current": now["allocated"],
            "active_bytes.all.peak": now["peak_allocated"],
            "reserved_bytes.all.current": now["reserved"],
            "reserved_bytes.all.peak": now["peak_reserved"],
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    return {
        "memory_allocated": counter("allocated"),
        "memory_reserved": counter("reserved"),
        "max_memory_allocated": counter("peak_allocated"),
        "max_memory_reserved": counter("peak_reserved"),
        "mem_get_info": lambda *_: (max(total_memory - counters()["reserved"], 0), total_memory),
        "memory_stats": stats,
        "memory_stats_as_nested_dict": lambda *_: {},
        "memory_summary": lambda *_, **__: "memexport simulates this device",
    }


_NOTHING_TO_DO: Final[dict[str, Any]] = dict.fromkeys(
    (
        "init",
        "_lazy_init",
        "_lazy_call",
        "set_device",
        "set_stream",
        "synchronize",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "set_rng_state",
        "set_rng_state_all",
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "reset_max_memory_cached",
        "reset_accumulated_memory_stats",
        "set_per_process_memory_fraction",
    ),
    _nothing,
)


def _about_accelerators(answers: Mapping[str, Any]) -> dict[str, Any]:
    """The same for `torch.accelerator`, which has other names."""
    return {
        "is_available": answers["is_available"],
        "device_count": answers["device_count"],
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": _nothing,
        "set_device_idx": _nothing,
        "current_stream": lambda *_: _STREAM,
        "set_stream": _nothing,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "memory_allocated": answers["memory_allocated"],
        "memory_reserved": answers["memory_reserved"],
        "max_memory_allocated": answers["max_memory_allocated"],
        "max_memory_reserved": answers["max_memory_reserved"],
        "memory_stats": answers["memory_stats"],
    }
