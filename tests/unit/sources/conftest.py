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
    """The processor time that a call takes: that of other processes on the machine does not count."""

    def seconds(function):
        begin = time.process_time()
        function()
        return time.process_time() - begin

    return seconds
