"""What the tests of sources share."""

from __future__ import annotations

import time

import pytest
from hypothesis import settings

# On a busy machine any example may take long; that is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def benchmark_seconds():
    """The processor time that a call takes, as of a machine that adds a million numbers in 40 ms.

    A core that is shared with another busy one runs at a fraction of its speed, and only this run knows it.
    """

    def processor_seconds(function):
        begin = time.thread_time()
        function()
        return time.thread_time() - begin

    def additions():
        total = 0
        for number in range(1_000_000):
            total += number

    def seconds(function):
        before = processor_seconds(additions)
        taken = processor_seconds(function)
        return taken * min(1, 0.04 / max(before, processor_seconds(additions)))

    return seconds
