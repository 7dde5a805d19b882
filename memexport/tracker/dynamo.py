"""Keeps `torch.compile` from compiling memexport's own code.

What is called from a frame that Dynamo gave up on, it looks at again, frame by frame: what the dispatcher and
the hooks of modules call too. It would compile that, and again for each length of a list, and it cannot
compile all of it. A mark on the code object, as `torch._dynamo.eval_frame.skip_code` sets it, lets it run as
it is; importing torch._dynamo for that would take seconds.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterable, Iterator

import torch

_marked: set[str] = set()


def keep_out() -> None:
    """Mark the functions of all modules of memexport that are loaded, once each.

    It relies on names of torch's own; where there are none such, nothing is marked.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "memexport" and name not in _marked:
            _marked.add(name)
            with contextlib.suppress(AttributeError, TypeError):
                _mark(module)


def _mark(module: types.ModuleType) -> None:
    own = torch._C._dynamo.eval_frame
    as_it_is = own._FrameExecStrategy(own._FrameAction.SKIP, own._FrameAction.DEFAULT)
    for code in _codes(list(vars(module).values()), module.__name__):
        own.set_code_exec_strategy(code, as_it_is)


def _codes(values: Iterable[object], module: str) -> Iterator[types.CodeType]:
    """The code of a module's or class' functions, and of those in them."""
    for value in values:
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType) and function.__module__ == module:
            yield from _with_inner(function.__code__)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(list(vars(value).values()), module)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)
