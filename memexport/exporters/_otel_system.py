"""What the operating system and the GPU's driver say of memory, beside what was recorded."""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memexport.exporters._otel_fold import gpu_attributes
from memexport.exporters._otel_snapshot import Attributes
from memexport.model import Device


def resident_bytes() -> int:
    """Physical memory of this process; where the system does not say, the most that it ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * os.sysconf("SC_PAGE_SIZE")


def gpu_bytes_in_use(devices: Sequence[Device]) -> dict[Attributes, int]:
    """Memory in use by all processes of each GPU of which driver and recording know the UUID."""
    found = {}
    for device in devices:
        if device.type == "cuda" and device.uuid is not None:
            used = _nvml_bytes_in_use(device.uuid)
            if used is not None:
                found[gpu_attributes(device)] = used
    return found


class _NvmlMemory(ctypes.Structure):
    """`nvmlMemory_t` of nvml.h."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@functools.cache
def _nvml() -> Any:
    """NVIDIA's management library, ready to be asked; None where there is none."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


@functools.cache
def _nvml_handle(uuid: str) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    # torch leaves out the prefix.
    full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    failed = _nvml().nvmlDeviceGetHandleByUUID(full.encode(), ctypes.byref(handle))
    return None if failed else handle


def _nvml_bytes_in_use(uuid: str) -> int | None:
    library = _nvml()
    handle = None if library is None else _nvml_handle(uuid)
    memory = _NvmlMemory()
    if handle is None or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        return None
    return int(memory.used)
