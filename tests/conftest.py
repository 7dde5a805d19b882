"""Fixtures for every test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

from trace_processor import TraceProcessor


@pytest.fixture
def load_trace() -> Iterator[Callable[[Path], TraceProcessor]]:
    """Opens a trace in Perfetto's own importer; each call gives another `TraceProcessor`."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(TraceProcessor()).load(path)
