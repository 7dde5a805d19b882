"""Fixtures for every test."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from trace_processor import TraceProcessor


@pytest.fixture(scope="module", autouse=True)
def _no_tensors_of_others() -> None:
    """A tracker looks for tensors among the objects that gc knows: let it find none that other tests left.

    There are a million objects once every integration is imported; without them it starts in no time, too.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def load_trace() -> Iterator[Callable[[Path], TraceProcessor]]:
    """Opens a trace in Perfetto's own importer; each call gives another `TraceProcessor`."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(TraceProcessor()).load(path)
