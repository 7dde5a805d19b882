"""How a program is simulated: what its user chose, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal

from memexport.analysis.sizes import parse_size
from memexport.errors import UsageError

_DEVICES: Final = (None, "cpu", "cuda")


@dataclass(frozen=True)
class FakeOptions:
    """How to simulate; see `Tracker`."""

    device: Literal["cpu", "cuda"] | None = None
    world_size: int | None = None
    budget: int | None = None
    value: float = 1.0

    def __post_init__(self) -> None:
        """Check.

        Raises:
            UsageError: no such device can be simulated, or a number is too small.
        """
        if self.device not in _DEVICES:
            raise UsageError(f"device {self.device!r} cannot be simulated", hint='"cuda" or "cpu"')
        if self.world_size is not None and self.world_size < 1:
            raise UsageError(f"world_size is {self.world_size}, but must be 1 or more")

    def as_text(self) -> dict[str, object]:
        """For `RecordingInfo.options`."""
        text: dict[str, object] = {"device": self.device or "as the program says", "fake_value": self.value}
        if self.world_size is not None:
            text["world_size"] = self.world_size
        if self.device == "cuda":
            text["estimated"] = "allocated, active, reserved"
            text["allocator"] = allocator_conf() or "default"
        return text


def budget_bytes(budget: int | str | None) -> int | None:
    """A budget in bytes.

    Raises:
        UsageError: this is no size.
    """
    if budget is None or isinstance(budget, int):
        return budget
    try:
        return parse_size(budget)
    except ValueError as error:
        raise UsageError(f"budget: {error}") from error


def allocator_conf() -> str:
    """What the program's environment says to the caching allocator."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
