"""What calls the code that runs: questions that only the Python frames further up can answer."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Final

import torch

_ENGINE_CALL: Final = torch.autograd.graph._engine_run_backward.__name__
_CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"
_CHECKPOINT_DEPTH: Final = 40
"""How many frames up torch.utils.checkpoint is looked for: a function that it runs again may call others."""


def was_started_here() -> bool:
    """Whether the backward that runs was started in this thread: it is further up then."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        if frame.f_code.co_name == _ENGINE_CALL:
            return True
        frame = frame.f_back
    return False


def in_checkpoint() -> bool:
    """Whether torch.utils.checkpoint is running a function again, a few frames up."""
    frame = sys._getframe(3)
    for _ in range(_CHECKPOINT_DEPTH):
        if frame.f_code.co_filename.replace("\\", "/").endswith(_CHECKPOINT_FILE):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
