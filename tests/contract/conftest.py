"""What the contract tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import START_NS, Recorded

from memexport import pipeline
from memexport.model import RecordingInfo, Tables

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def recorded():
    """A recording with every kind of event."""
    return Recorded(RecordingInfo(producer="memexport", start_time_unix_ns=START_NS), Tables())


@pytest.fixture
def empty():
    """A recording without an event."""
    recording = Recorded(RecordingInfo(), Tables())
    recording.batches = lambda: iter(())
    return recording


@pytest.fixture
def sample(tmp_path):
    """A file of the source with this name."""

    def make(source_name):
        if source_name == "torch.memory_tracker":
            return DATA / "legacy_conv.pickle"
        if source_name == "torch.cuda.snapshot":
            return DATA / "snapshots" / "silmont_mem_snapshot.pickle"
        if source_name == "kineto":
            return DATA / "kineto" / "torch-2.13-cpu.json.gz"
        # Every other source reads what memexport itself writes.
        path = tmp_path / "sample.memx"
        pipeline.convert(DATA / "legacy_conv.pickle", path, overwrite=True)
        return path

    return make
