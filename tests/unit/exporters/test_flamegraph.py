"""What lived at a moment, as stacks that add up to the counter."""

from __future__ import annotations

import numpy as np
import pytest

from memexport.analysis.live import Allocations
from memexport.exporters._flamegraph import Stack, category_name, module_frames, stacks
from memexport.model import UNKNOWN_SIZE, Category, StringTable


@pytest.mark.parametrize(
    ("path", "frames"),
    [
        (None, []),
        ("Net", ["Net"]),
        ("layers.1.self_attn.q_proj", ["layers.1", "self_attn", "q_proj"]),
        ("0.1.fc", ["0.1", "fc"]),
        ("a..b", ["a", "", "b"]),
    ],
)
def test_a_path_becomes_frames_with_short_names(path: str | None, frames: list[str]) -> None:
    """A number stays with what it counts."""
    assert module_frames(path) == frames


def test_stacks_are_summed_by_module_operator_and_category() -> None:
    """What nothing explains is a stack of its own; what no operator made is named by its category."""
    strings = StringTable()
    module, operator = strings.intern("net.0.fc"), strings.intern("aten.add.Tensor")
    live = Allocations(
        np.arange(1, 6, dtype=np.uint64),
        {
            "size_bytes": np.array([10, 20, 5, 7, UNKNOWN_SIZE]),
            "category": np.array([4, 4, 5, 1, 0], np.uint8),
            "module": np.array([module, module, module, module, 0], np.uint32),
            "name": np.array([operator, operator, operator, 0, operator], np.uint32),
        },
    )
    found = sorted(stacks(live, 50, strings), key=lambda stack: -stack.bytes)
    assert found == [
        Stack(("net.0", "fc", "aten::add"), "activation", 30, 2),
        Stack(("(unattributed)",), "unattributed", 8, 1),
        Stack(("net.0", "fc", "parameter"), "parameter", 7, 1),
        Stack(("net.0", "fc", "aten::add"), "temporary", 5, 1),
        Stack(("aten::add",), "unattributed", 0, 1),
    ]


def test_categories_are_shown_as_people_write_them() -> None:
    """One that only a later version of the model has is not attributed."""
    assert category_name(Category.OPTIMIZER_STATE) == "optimizer state"
    assert [category_name(number) for number in (0, 9, 200)] == ["unattributed"] * 3
