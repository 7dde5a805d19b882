"""Each piece of advice: when it is given, on what figure it rests, and when it is not."""

from __future__ import annotations

import pytest
from made_runs import Run

from memexport.model import Category

MIB = 1 << 20


def advice_of(run, **end):
    """By topic."""
    return {advice.topic: advice for advice in run.summary(**end).advice}


def test_activations_that_hold_much_name_the_blocks_to_checkpoint_with_their_bytes():
    run = Run().allocate(10 * MIB, Category.PARAMETER, module="embedding")
    for layer, size in enumerate((2, 9, 4, 3)):
        run.allocate(size * MIB, module=f"model.layers.{layer}.mlp.up")
        run.allocate(MIB, module=f"model.layers.{layer}.norm")
    advice = advice_of(run)["activations"]
    assert [(row.module, row.bytes // MIB) for row in advice.modules] == [
        ("model.layers.1", 10),
        ("model.layers.2", 5),
        ("model.layers.3", 4),
    ]
    assert advice.bytes == 22 * MIB
    assert "22.00 MiB (69% of the peak)" in advice.text
    assert "model.layers.1 (10.00 MiB)" in advice.text


def test_modules_outside_of_lists_are_named_themselves():
    run = Run().allocate(4 * MIB, module="stem").allocate(6 * MIB, module="body.conv")
    assert [row.module for row in advice_of(run)["activations"].modules] == ["body.conv", "stem"]


def test_elements_of_the_outermost_sequential_are_blocks():
    run = Run().allocate(4 * MIB, module="0.1.2").allocate(MIB, module="0.0").allocate(MIB, module="3")
    rows = advice_of(run)["activations"].modules
    assert [(row.module, row.bytes // MIB) for row in rows] == [("0", 5), ("3", 1)]


def test_optimizer_state_that_holds_much_says_what_a_quarter_of_it_is():
    run = Run().allocate(30 * MIB, Category.PARAMETER).allocate(60 * MIB, Category.OPTIMIZER_STATE)
    advice = advice_of(run)["optimizer_state"]
    assert advice.bytes == 60 * MIB
    assert "60.00 MiB (67% of the peak)" in advice.text
    assert "15.00 MiB" in advice.text


@pytest.mark.parametrize(("phase", "is_given"), [(1, True), (2, False), (4, False)])
def test_gradients_are_in_the_way_only_if_the_peak_is_in_forward(phase, is_given):
    run = Run().allocate(4 * MIB, Category.GRADIENT).allocate(4 * MIB, phase=phase)
    assert ("gradients" in advice_of(run)) == is_given


def test_a_module_with_more_parameters_than_all_others_is_named():
    run = Run().allocate(30 * MIB, Category.PARAMETER, module="embedding")
    run.allocate(10 * MIB, Category.PARAMETER, module="head")
    advice = advice_of(run)["parameters"]
    assert (advice.bytes, advice.modules[0].module) == (30 * MIB, "embedding")


def test_reserved_memory_that_is_not_active_names_the_allocators_setting():
    run = Run("cuda", index=0)
    run.allocate(256 * MIB, active_bytes=256 * MIB, reserved_bytes=400 * MIB)
    advice = advice_of(run)["fragmentation"]
    assert advice.bytes == 144 * MIB
    assert "expandable_segments:True" in advice.text
    assert "144.00 MiB of 400.00 MiB reserved (36%)" in advice.text


def test_a_little_unused_memory_is_no_trouble():
    run = Run("cuda", index=0)
    run.allocate(MIB, active_bytes=MIB, reserved_bytes=2 * MIB)
    assert "fragmentation" not in advice_of(run)


@pytest.mark.parametrize(
    ("format_name", "names"),
    [
        ("memexport.archive", "--capture allocator"),
        ("torch.memory_tracker", "memexport run"),
        ("torch.cuda.snapshot", "_record_memory_history"),
        ("kineto", "memexport run"),
    ],
)
def test_much_that_nobody_explains_says_what_would_explain_it(format_name, names):
    run = Run(format=format_name).allocate(MIB).more(MIB)
    advice = advice_of(run)["unattributed"]
    assert advice.bytes == MIB
    assert names in advice.text


def test_a_leak_comes_first_and_names_its_module_and_slope():
    run = Run()
    for _ in range(8):
        run.allocate(MIB, module="head").end_step()
    first = run.summary().advice[0]
    assert (first.topic, first.bytes, first.modules[0].module) == ("growth", MIB, "head")
    assert "1.00 MiB more are live after each step, of head (1.00 MiB)" in first.text


def test_allocation_retries_are_told_with_what_was_reserved():
    run = Run("cuda", index=0).allocate(MIB, reserved_bytes=4 * MIB)
    advice = advice_of(run, alloc_retries=3)["allocation_retries"]
    assert "3 times" in advice.text
    assert advice.bytes == 4 * MIB
    assert "allocation_retries" not in advice_of(run, alloc_retries=0)


def test_a_small_and_steady_run_gets_no_advice():
    run = Run().allocate(1000, module="layers.0")
    for _ in range(8):
        run.end_step()
    assert run.summary().advice == ()


def test_every_piece_of_advice_states_its_figure():
    run = Run("cuda", index=0).allocate(MIB, Category.OPTIMIZER_STATE, reserved_bytes=MIB)
    for _ in range(6):
        run.allocate(MIB, module="layers.0").more(2 * MIB).end_step()
    from memexport.analysis.text import human_bytes

    found = run.summary(alloc_retries=1).advice
    assert len(found) >= 3
    assert all(human_bytes(advice.bytes) in advice.text for advice in found)
