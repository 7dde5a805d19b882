"""Which errors mean that memory ran out, and what their messages say of the request that failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import torch

# c10/cuda/CUDACachingAllocator.cpp, c10/xpu/XPUCachingAllocator.cpp: "CUDA out of memory. Tried to allocate
# 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.25 GiB is free. ..."; aten/src/ATen/mps/
# MPSAllocator.mm: "MPS backend out of memory (...). Tried to allocate 1.50 GB on private pool."; c10/core/
# impl/alloc_cpu.cpp: "DefaultCPUAllocator: can't allocate memory: you tried to allocate 17 bytes."; NumPy:
# "Unable to allocate 8.00 GiB for an array with shape ..."; torch_npu: "NPU out of memory. Tried to allocate
# 260.00 MiB (NPU 0; 28.50 GiB total capacity; ...; 149.57 MiB free; ...)". Units are all powers of 1024.
_SIZE: Final = r"([0-9]+(?:\.[0-9]+)?) ?(bytes|[KMGT]i?B)\b"
_ASKED: Final = re.compile(rf"(?:tried to allocate|unable to allocate) {_SIZE}", re.IGNORECASE)
_FREE: Final = re.compile(rf"{_SIZE} (?:is )?free\b")
_DEVICE: Final = re.compile(r"\b([A-Z]+)(?: backend)? out of memory(?:.*?\b(?:GPU|\1) ([0-9]+))?", re.DOTALL)
_UNITS: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

# Plain RuntimeErrors, all of them; an allocator of its own may also have a type of its own.
_OF_RUNTIME_ERRORS: Final = (
    "DefaultCPUAllocator:",
    "MPS backend out of memory",
    "NPU out of memory. Tried to allocate",
)
_OF_A_WORKER: Final = re.compile(r"Caught \w+ in \w+ worker process")
"""What a DataLoader puts before the message of an error that it has brought from another process."""


@dataclass(frozen=True)
class Request:
    """A request for memory that failed; None for what the allocator did not say.

    Attributes:
        bytes: what was asked for; rounded to three digits where a message says it in GiB.
        device: torch's name of the device, "cuda:0".
        free_bytes: what the device had left outside of the allocator.
    """

    bytes: int | None = None
    device: str | None = None
    free_bytes: int | None = None


def is_oom(error: BaseException) -> bool:
    """Whether memory ran out, in this process."""
    if not isinstance(error, (torch.OutOfMemoryError, MemoryError, RuntimeError)):
        return False
    text = message(error)
    if _OF_A_WORKER.match(text):
        return False
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return any(said in text for said in _OF_RUNTIME_ERRORS)


def message(error: BaseException) -> str:
    """What the error says, "" where that is no text. Calls nothing of the error's own."""
    said = error.args[0] if error.args else ""
    return said if isinstance(said, str) else ""


def request_of(error: BaseException) -> Request:
    """What the message says of the request."""
    text = message(error)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator:" in text:
        return Request(_size(_ASKED.search(text)), "cpu")
    return Request(_size(_ASKED.search(text)), _device(text), _size(_FREE.search(text)))


def _size(found: re.Match[str] | None) -> int | None:
    return None if found is None else round(float(found[1]) * _UNITS[found[2][0].lower()])


def _device(text: str) -> str | None:
    found = _DEVICE.search(text)
    if found is None:
        return None
    type_ = {"hip": "cuda"}.get(found[1].lower(), found[1].lower())
    return type_ if found[2] is None else f"{type_}:{found[2]}"
