"""What the callbacks of training frameworks take of a tracker's options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from memexport.tracker.oom.options import OnOom


class TrackerOptions(TypedDict, total=False):
    """Those of `memexport.Tracker`, with what they are there if they are not given.

    Not among them: models and optimizers, which the framework knows; `step_at_optimizer`, as it is the
    framework that says when a step ends; and the options of a simulation, which needs a model of its own.
    """

    flush_interval: float
    record_shapes: bool
    record_stacks: bool
    capture: Literal["operators", "allocator"]
    every: int | None
    window: int | None
    steps: tuple[int, int] | Sequence[tuple[int, int]] | None
    max_bytes: int | str | None
    on_oom: OnOom | None
    oom_events: int
    annotate_snapshots: bool


def check(options: TrackerOptions) -> None:
    """Look whether there are only such options.

    Raises:
        TypeError: there is another.
    """
    unknown = options.keys() - TrackerOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(TrackerOptions.__annotations__)
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}; there are {known}")
