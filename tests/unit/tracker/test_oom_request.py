"""Which errors mean that memory ran out, and what they say."""

from __future__ import annotations

import pytest
import torch
from failing import CUDA_MESSAGE, TOO_MUCH

from memexport.tracker.oom.request import Request, is_oom, request_of

GIB = 1 << 30


@pytest.mark.parametrize(
    ("error", "request_"),
    [
        (torch.OutOfMemoryError(CUDA_MESSAGE), Request(2 * GIB, "cuda:0", GIB + GIB // 4)),
        (torch.OutOfMemoryError("XPU out of memory. Tried to allocate 512 bytes. GPU 3 has a total"),
         Request(512, "xpu:3")),
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 1.50 MiB. GPU 1 has a total"),
         Request(3 << 19, "cuda:1")),
        (torch.OutOfMemoryError("full"), Request()),
        (torch.OutOfMemoryError(), Request()),
        (torch.OutOfMemoryError(17), Request()),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1.00 GB, max allowed: 2.00 GB). Tried to"
                      " allocate 1.50 GB on private pool."), Request(3 * GIB // 2, "mps")),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"
                      " memory: you tried to allocate 4503599627370496 bytes. Error code 12"),
         Request(1 << 52, "cpu")),
        (MemoryError("Unable to allocate 8.00 GiB for an array with shape (1073741824,)"),
         Request(8 * GIB, "cpu")),
        (MemoryError(), Request(None, "cpu")),
        (RuntimeError("NPU out of memory. Tried to allocate 1.50 GiB (NPU 3; 28.50 GiB total capacity; 10.25"
                      " GiB already allocated; 1.25 GiB free; 10.28 GiB reserved in total by PyTorch)"),
         Request(3 * GIB // 2, "npu:3", GIB + GIB // 4)),
    ],
    ids=["cuda", "xpu", "hip", "silent", "empty", "number", "mps", "cpu", "numpy", "python", "npu"],
)  # fmt: skip
def test_an_error_of_an_allocator_tells_what_was_asked_for(error: Exception, request_: Request) -> None:
    assert is_oom(error)
    assert request_of(error) == request_


def test_the_error_of_this_torchs_own_allocator_is_one() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(TOO_MUCH, dtype=torch.uint8)
    assert is_oom(raised.value)
    assert request_of(raised.value) == Request(TOO_MUCH, "cpu")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError(),
        ValueError("DefaultCPUAllocator: can't allocate memory"),
        KeyboardInterrupt(),
        RuntimeError(
            "Caught RuntimeError in DataLoader worker process 0.\nDefaultCPUAllocator: can't allocate"
        ),
        torch.OutOfMemoryError("Caught OutOfMemoryError in DataLoader worker process 0."),
    ],
    ids=["shapes", "empty", "another type", "interrupt", "in a worker", "in a worker's device"],
)
def test_other_errors_and_those_of_other_processes_are_none(error: BaseException) -> None:
    assert not is_oom(error)
