"""Frames of a stack: their parts, whose they are, and what a report says of a stack."""

from __future__ import annotations

import pytest

from memexport.analysis.frames import Frame, is_own_frame, own_code, parse_frame


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("/home/me/train.py:41:step", Frame("/home/me/train.py", 41, "step")),
        ("C:\\code\\train.py:41:step", Frame("C:\\code\\train.py", 41, "step")),
        ("??:0:torch::unwind::unwind()", Frame("??", 0, "torch::unwind::unwind()")),
        (":0:at::empty(a, b)", Frame("", 0, "at::empty(a, b)")),
        ("fake_tensor.py:18446744073709551615:init", Frame("fake_tensor.py", 2**64 - 1, "init")),
        ("aten.mm.default", Frame("", 0, "aten.mm.default")),
        ("<stdin>:1:<module>", Frame("<stdin>", 1, "<module>")),
        ("", Frame("", 0, "")),
    ],
)
def test_a_frame_is_a_file_a_line_and_a_function(text, frame):
    assert parse_frame(text) == frame


@pytest.mark.parametrize(
    "text",
    [
        "/home/me/train.py:41:step",
        "train.py:41:step",
        "C:\\code\\train.py:41:step",
        "/home/me/torch/train.py:1:main",
        "/tmp/ipykernel_7/123.py:2:<module>",
        "<ipython-input-3-ab>:2:<module>",
        "<stdin>:1:<module>",
    ],
)
def test_the_users_own_code_is_found(text):
    assert is_own_frame(parse_frame(text))


@pytest.mark.parametrize(
    "text",
    [
        "/env/lib/python3.12/site-packages/torch/nn/modules/module.py:1370:convert",
        "/env/lib/python3.12/site-packages/transformers/trainer.py:9:train",
        "/usr/lib/python3/dist-packages/numpy/core.py:3:f",
        "C:\\env\\Lib\\site-packages\\torch\\tensor.py:9:backward",
        "C:\\Python311\\Lib\\threading.py:9:run",
        "/usr/lib/python3.10/threading.py:973:_bootstrap",
        "/home/me/.conda/envs/x/lib/python3.9/runpy.py:87:_run_code",
        "/home/me/pytorch/torch/nn/modules/linear.py:114:forward",
        "/home/me/pytorch/torch/_tensor.py:626:backward",
        "/tmp/torchinductor_me/ab/cabc.py:77:call",
        "<frozen importlib._bootstrap>:241:_call",
        "<eval_with_key>.3:8:forward",
        "/croot/python/Python/ceval.c:578:PyEval_EvalCode",
        "??:0:torch::autograd::Engine::thread_main()",
        "aten.mm.default",
    ],
)
def test_torch_the_standard_library_packages_and_compiled_code_are_others(text):
    assert not is_own_frame(parse_frame(text))


def code_of(*texts, limit=3):
    """What is said of a stack, outermost frame first."""
    return own_code([parse_frame(text) for text in texts], limit)


def test_a_stack_is_its_innermost_own_frames():
    stack = [f"/home/me/a.py:{line}:f" for line in range(1, 6)]
    torch = "/env/lib/python3.12/site-packages/torch/nn/functional.py:3:linear"
    assert code_of(*stack, torch, "??:0:at::linear()") == ("a.py:3 f", "a.py:4 f", "a.py:5 f")
    assert code_of(*stack, limit=1) == ("a.py:5 f",)


def test_a_stack_without_own_code_is_the_innermost_python_code():
    engine = "/env/lib/python3.12/site-packages/torch/autograd/graph.py:829:_engine_run_backward"
    assert code_of(engine, "??:0:torch::autograd::Engine::execute()") == (
        "graph.py:829 _engine_run_backward",
    )


def test_a_thread_of_backward_is_what_it_runs():
    assert code_of(
        "??:0:clone",
        "??:0:torch::autograd::generated::DivBackward0::apply(std::vector<at::Tensor>&&)",
        "??:0:at::_ops::div_Tensor::call(at::Tensor const&)",
    ) == ("DivBackward0",)


def test_a_stack_of_an_operator_alone_is_the_operator():
    assert code_of("??:0:clone", "??:0:at::_ops::bmm::call(at::Tensor const&)", "??:0:x") == ("bmm",)
    assert code_of("??:0:clone", "??:0:x") == ("x",)
    assert code_of() == ()
