"""What tools cost per operator, measured side by side: a few training steps under each in turn, many times.

One process, one thread of torch, one small transformer (attention, MLP, tied embedding, a checkpointed block,
AdamW). A tool's figure is the median over the rounds of (its time − the bare time of the same round) per
operator.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from memexport.demo import SmallTransformer, training_step

Tools = Mapping[str, Callable[[], Any]]
"""By name, what makes the context manager under which training runs."""


class EmptyMode(TorchDispatchMode):
    """Does nothing: what any tool built on a dispatch mode costs at least."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class CountingMode(TorchDispatchMode):
    """Counts operators."""

    operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operators += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Costs:
    """What was measured.

    Attributes:
        operators: in a training step.
        bare_us: an operator without any tool.
        added_us: what each tool adds to an operator.
    """

    operators: int
    bare_us: float
    added_us: Mapping[str, float]


class Training:
    """The model that is trained, warm.

    Args:
        wrap: what becomes of the model before it is trained.
        clock: seconds; what a measurement is of.
    """

    def __init__(
        self,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._clock = clock
        self.model = wrap(SmallTransformer())
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for _ in range(5):
            self.step()

    def step(self) -> None:
        """One training step."""
        training_step(self.model, self.optimizer)

    def registered(self, tracker: Any) -> Any:
        """A tracker of torch's kind, told of the model and optimizer."""
        tracker.track_external(self.model, self.optimizer)
        return tracker

    def costs(self, tools: Tools, *, rounds: int, steps: int) -> Costs:
        """What the tools cost; `steps` are those of one measurement."""
        with CountingMode() as counting:
            self.step()
        timed = {"": contextlib.nullcontext, **tools}
        times: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(rounds):
            for name, make in timed.items():
                seconds = self._seconds_per_step(make(), steps)
                times[name].append(seconds / counting.operators * 1e6)
        bare = times.pop("")
        added = {
            name: statistics.median(value - base for value, base in zip(values, bare, strict=True))
            for name, values in times.items()
        }
        return Costs(counting.operators, statistics.median(bare), added)

    def _seconds_per_step(self, tool: Any, steps: int) -> float:
        # torch's tracker grows with every step it sees, so it gets fewer.
        steps = max(2, steps // 10) if isinstance(tool, MemTracker) else steps
        # It refuses a second iteration unless it is told to forget the first.
        before_step = getattr(tool, "reset_mod_stats", lambda: None)
        with tool:
            self.step()
            seconds = 0.0
            for _ in range(steps):
                before_step()
                started = self._clock()
                self.step()
                seconds += self._clock() - started
        return seconds / steps


def options(description: str) -> argparse.Namespace:
    """The command line's: `rounds` and `steps`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20, help="training steps per measurement")
    return parser.parse_args()
