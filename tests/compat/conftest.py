"""Each test starts without the garbage of the one before, and computes in one thread."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    gc.collect()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small are not worth sharing out; on a busy machine that takes a hundred times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
