"""Every tensor and every optimizer that Python knows of."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


class Alive(NamedTuple):
    """What was found.

    Attributes:
        tensors: those that are simulated, or those that are not.
    """

    tensors: list[torch.Tensor]
    optimizers: list[torch.optim.Optimizer]


def look_around(*, fake: bool) -> Alive:
    """Every tensor (with `fake`, every simulated one) and every optimizer that Python knows of."""
    objects = gc.get_objects()
    # Some hundred thousand objects, so all of it in C: what they are, not what they say they are.
    optimizers, tensors = _types(torch.optim.Optimizer), _types(torch.Tensor)
    is_either = map((optimizers | tensors).__contains__, map(type, objects))
    found = Alive([], [])
    for one in itertools.compress(objects, is_either):
        if type(one) in optimizers:
            found.optimizers.append(one)
        # A wrapper has no memory, what is in it has.
        elif not is_traceable_wrapper_subclass(one) and _is_simulated(one) == fake:
            found.tensors.append(one)
    return found


def _is_simulated(tensor: torch.Tensor) -> bool:
    fake_tensor = sys.modules.get("torch._subclasses.fake_tensor")
    return fake_tensor is not None and isinstance(tensor, fake_tensor.FakeTensor)


def _types(kind: type) -> set[type]:
    """The class and everything derived from it."""
    types: list[type] = [kind]
    for known in types:  # grows meanwhile
        types += type.__subclasses__(known)
    return set(types)
