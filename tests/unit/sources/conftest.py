"""What the tests of sources share."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def benchmark_seconds():
    """The processor time that a call takes: that of other processes on the machine does not count."""

    def seconds(function):
        begin = time.process_time()
        function()
        return time.process_time() - begin

    return seconds
