"""What a tracker let torch keep with CUDA's allocations comes back from the snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest
from snapshot_files import entry, snapshot, written

import memexport
from memexport.analysis.stamps import Stamp
from memexport.model import EventKind, Phase


@pytest.mark.parametrize("module", [None, "layers.0.up", "blocks.my block"], ids=str)
def test_a_stamp_is_read_as_it_was_written(module: str | None) -> None:
    stamp = Stamp(Phase.RECOMPUTE, "aten.mm.default", module)
    assert Stamp.parse(stamp.text()) == stamp


@pytest.mark.parametrize("text", ["", "epoch 3", "memexport", "memexport phase=no operator=aten.mm"])
def test_other_texts_are_no_stamps(text: str) -> None:
    assert Stamp.parse(text) is None


def test_a_snapshot_says_what_a_tracker_stamped(tmp_path: Path) -> None:
    forward = Stamp(Phase.FORWARD, "aten.mm.default", "layers.0").text()
    backward = Stamp(Phase.BACKWARD, "aten.add.Tensor", None).text()
    trace = [
        entry("alloc", 512, 10, user_metadata=forward),
        entry("alloc", 1024, 10, user_metadata="mine"),
        entry("free_requested", 512, 10, user_metadata=backward),
    ]
    with memexport.open(written(tmp_path, snapshot(trace))) as recording:
        found = [
            (recording.tables.strings.get(name), recording.tables.strings.get(module), Phase(phase))
            for batch in recording.batches()
            for kind, name, module, phase in zip(
                batch.kind.tolist(),
                batch.name.tolist(),
                batch.module.tolist(),
                batch.phase.tolist(),
                strict=True,
            )
            if kind in (EventKind.ALLOCATION, EventKind.RELEASE)
        ]
    assert found == [
        ("aten.mm.default", "layers.0", Phase.FORWARD),
        ("mine", None, Phase.UNKNOWN),
        ("free_requested", None, Phase.BACKWARD),
    ]
