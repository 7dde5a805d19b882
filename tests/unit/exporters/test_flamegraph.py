"""What lived at a moment, as stacks that add up to the counter."""

from __future__ import annotations

import numpy as np
import pytest

from memexport.analysis.live import Allocations
from memexport.exporters._flamegraph import Stack, category_name, module_frames, stacks
from memexport.exporters._frames import Frame, code_frame
from memexport.model import UNKNOWN_SIZE, Category, Tables


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


def allocations(**columns: list[int]) -> Allocations:
    """Of these columns, each at an address of its own."""
    rows = len(columns["size_bytes"])
    remembered = {
        name: np.array(columns.get(name, [0] * rows), dtype)
        for name, dtype in (
            ("size_bytes", "i8"),
            ("category", "u1"),
            ("module", "u4"),
            ("name", "u4"),
            ("stack", "u4"),
        )
    }
    return Allocations(np.arange(1, rows + 1, dtype=np.uint64), remembered)


def plain(*names: str) -> tuple[Frame, ...]:
    return tuple(map(Frame, names))


def test_stacks_are_summed_by_module_operator_and_category() -> None:
    """What nothing explains is a stack of its own."""
    tables = Tables()
    module, operator = tables.strings.intern("net.0.fc"), tables.strings.intern("aten.add.Tensor")
    live = allocations(
        size_bytes=[10, 20, 5, 7, UNKNOWN_SIZE],
        category=[4, 4, 5, 1, 0],
        module=[module, module, module, module, 0],
        name=[operator, operator, operator, 0, operator],
    )
    found = sorted(stacks(live, 50, tables), key=lambda stack: -stack.bytes)
    assert found == [
        Stack(plain("activation", "net.0", "fc", "aten::add"), "activation", 30, 2),
        Stack(plain("(unattributed)"), "unattributed", 8, 1),
        Stack(plain("parameter", "net.0", "fc"), "parameter", 7, 1),
        Stack(plain("temporary", "net.0", "fc", "aten::add"), "temporary", 5, 1),
        Stack(plain("aten::add"), "unattributed", 0, 1),
    ]


def test_python_stacks_stand_where_nothing_else_is_known() -> None:
    """Beside a module they only say where the operator was called."""
    tables = Tables()
    frames = [tables.strings.intern(text) for text in ("/src/train.py:10:main", "/src/model.py:7:forward")]
    stack = tables.stacks.intern(frames)
    operator, module = tables.strings.intern("aten.mm.default"), tables.strings.intern("net")
    live = allocations(
        size_bytes=[4, 8, 16],
        category=[0, 4, 0],
        module=[0, module, 0],
        name=[0, operator, operator],
        stack=[stack, stack, stack],
    )
    called = Frame("forward (model.py:7)", "/src/model.py", 7)
    main, operated = Frame("main (train.py:10)", "/src/train.py", 10), Frame("aten::mm", "/src/model.py", 7)
    assert sorted(stacks(live, 28, tables), key=lambda stack: stack.bytes) == [
        Stack((main, called), "unattributed", 4, 1),
        Stack((Frame("activation"), Frame("net"), operated), "activation", 8, 1),
        Stack((main, called, operated), "unattributed", 16, 1),
    ]


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("train.py:41:step", Frame("step (train.py:41)", "train.py", 41)),
        (r"C:\runs\train.py:3:<module>", Frame("<module> (train.py:3)", r"C:\runs\train.py", 3)),
        ("??:0:c10::cuda::malloc(unsigned long)", Frame("c10::cuda::malloc(unsigned long)")),
        ("/a:b/t.py:9:f", Frame("f (t.py:9)", "/a:b/t.py", 9)),
        ("torch::nothing", Frame("torch::nothing")),
        (":::", Frame(":::")),
        ("", Frame("")),
        ("generated:18446744073709551615:f", Frame("f")),
    ],
)
def test_a_frame_is_its_function_and_where_it_is(text: str, frame: Frame) -> None:
    """A text of another form is shown as it is."""
    assert code_frame(text) == frame


def test_categories_are_shown_as_people_write_them() -> None:
    """One that only a later version of the model has is not attributed."""
    assert category_name(Category.OPTIMIZER_STATE) == "optimizer state"
    assert [category_name(number) for number in (0, 9, 200)] == ["unattributed"] * 3
