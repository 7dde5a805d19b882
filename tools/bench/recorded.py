"""A real recording to measure with: the demo's transformer, as a tracker saw it train."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import memexport
from memexport.demo import SmallTransformer, training_step
from memexport.model import EventBatch, EventKind, RecordingInfo, Tables


def recorded_batches(operators: int) -> tuple[RecordingInfo, Tables, list[EventBatch]]:
    """The events of training until at least that many operators have run, in the batches of an archive."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallTransformer()
    optimizer = torch.optim.AdamW(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recorded.memx"
        with memexport.Tracker(model, optimizer=optimizer, exporters=[path]) as tracker:
            while tracker.summary().operators < operators:
                for _ in range(20):
                    training_step(model, optimizer)
                    tracker.step()
        with memexport.open(path) as recording:
            return recording.info, recording.tables, list(recording.batches())


def count_operators(batches: list[EventBatch]) -> int:
    """The OPERATOR events in them."""
    return sum(int((batch.kind == EventKind.OPERATOR).sum()) for batch in batches)
