"""Builds `device.cpp`, and makes its devices torch's accelerator in this process: "accel:0" and "accel:1"."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

LIBRARY = "MEMEXPORT_TEST_ACCELERATOR"
"""The environment variable that names the library, for the processes that run on it."""

_SOURCE = Path(__file__).with_name("device.cpp")
_TORCH = Path(torch.__file__).parent
_BUILD = Path(__file__).parents[2] / "build" / "accelerator"


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build() -> Path:
    """The library; compiled once for each source and torch, in some 15 s."""
    command = [
        str(compiler()),
        "-std=c++20",
        "-O0",
        "-fPIC",
        "-shared",
        f"-I{_TORCH / 'include'}",
        str(_SOURCE),
    ]
    command += [f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
    version = f"{torch.__version__} {torch.compiled_with_cxx11_abi()} {command}"
    digest = hashlib.sha256(_SOURCE.read_bytes() + version.encode()).hexdigest()[:16]
    library = _BUILD / f"device-{digest}.so"
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".tmp")
            subprocess.run([*command, "-o", str(unfinished)], check=True)
            unfinished.rename(library)
    return library


def load(library: Path) -> None:
    """Make it this process' accelerator: once, for good, and before the first backward."""
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend("accel")
    torch._register_device_module("accel", _module())
    torch.utils.generate_methods_for_privateuse1_backend()


def _module() -> types.ModuleType:
    """What torch looks for in `torch.accel`."""
    module = types.ModuleType("torch.accel")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 2
    module.current_device = torch.accelerator.current_device_index
    module.device = torch.accelerator.device_index
    module.synchronize = torch.accelerator.synchronize
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    # Random numbers are the CPU's.
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda _seed: None
    module.get_rng_state = lambda *_: torch.empty(0, dtype=torch.uint8)
    module.set_rng_state = lambda *_: None
    return module


@contextmanager
def capacity(index: int, size_bytes: int) -> Iterator[None]:
    """A device with so much memory, beginning with an empty cache."""
    set_capacity = ctypes.CDLL(os.environ[LIBRARY]).accel_set_capacity
    set_capacity.argtypes = [ctypes.c_int, ctypes.c_uint64]
    torch.accelerator.empty_cache()
    set_capacity(index, size_bytes)
    try:
        yield
    finally:
        set_capacity(index, 1 << 30)


@contextmanager
def workspace(size_bytes: int) -> Iterator[None]:
    """Matrix products and convolutions take so much for themselves, and give it back before they return.

    Elsewhere, convolutions take as much as their input, and the others nothing.
    """
    set_workspace = ctypes.CDLL(os.environ[LIBRARY]).accel_set_workspace
    set_workspace.argtypes = [ctypes.c_uint64]
    set_workspace(size_bytes)
    try:
        yield
    finally:
        set_workspace(0)


@contextmanager
def told_as_cuda() -> Iterator[None]:
    """Let its allocator tell profilers that it is CUDA's: torch's legacy one knows no other accelerator."""
    tell_as_cuda = ctypes.CDLL(os.environ[LIBRARY]).accel_tell_as_cuda
    tell_as_cuda.argtypes = [ctypes.c_bool]
    tell_as_cuda(True)
    try:
        yield
    finally:
        tell_as_cuda(False)


def take_levels(index: int) -> list[int]:
    """What was allocated on a device after each allocation and release since it was last asked."""
    most = 1 << 20
    levels = (ctypes.c_int64 * most)()
    take = ctypes.CDLL(os.environ[LIBRARY]).accel_take_levels
    take.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_uint64]
    return levels[: take(index, levels, most)]
