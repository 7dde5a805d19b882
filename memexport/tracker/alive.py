"""Every tensor that Python knows of."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def tensors_alive(*, fake: bool) -> Iterator[torch.Tensor]:
    """Every tensor that Python knows of: the simulated ones, or those that are not."""
    fake_tensor = sys.modules.get("torch._subclasses.fake_tensor")
    objects = gc.get_objects()
    # Some hundred thousand objects, so all of it in C: what they are, not what they say they are.
    is_tensor = map(_tensor_types().__contains__, map(type, objects))
    for tensor in itertools.compress(objects, is_tensor):
        if is_traceable_wrapper_subclass(tensor):
            continue  # it has no memory, those in it have
        is_fake = fake_tensor is not None and isinstance(tensor, fake_tensor.FakeTensor)
        if is_fake == fake:
            yield tensor


def _tensor_types() -> set[type]:
    """torch.Tensor and everything derived from it."""
    types: list[type] = [torch.Tensor]
    for known in types:  # grows meanwhile
        types += type.__subclasses__(known)
    return set(types)
