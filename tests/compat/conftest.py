"""Each test starts without the garbage of the one before."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _no_garbage() -> None:
    gc.collect()
