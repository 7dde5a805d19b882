"""What a tracker is asked to do when memory runs out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from memexport.errors import MemexportError, UsageError
from memexport.tracker.oom.report import OomReport
from memexport.tracker.oom.target import Target

log = logging.getLogger("memexport")

OnOom = str | os.PathLike[str] | Callable[[OomReport], object]
"""A folder, a file, or what is called with a report."""

VARIABLE: Final = "MEMEXPORT_OOM"
"""The environment variable that names a folder or file for trackers that were not given one."""


@dataclass(frozen=True)
class OomOptions:
    """See `Tracker`.

    Attributes:
        to: where recordings go, or what is called with reports.
        events: how many are kept at least.
        is_alone: nothing else is recorded.
    """

    to: Target | Callable[[OomReport], object]
    events: int
    is_alone: bool

    @staticmethod
    def of(on_oom: OnOom | None, events: int, *, is_alone: bool, is_possible: bool) -> OomOptions | None:
        """As the program wishes; if it says nothing, as the environment does. None: nothing is to be done.

        A program that did not ask for it neither fails because of it nor gets another summary.

        Raises:
            UsageError: the program asks for what is not possible.
        """
        if events <= 0:
            raise UsageError(f"oom_events is {events}, but must be more than 0")
        if on_oom is None:
            return _of_environment(events) if is_possible else None
        if not is_possible:
            raise UsageError('on_oom watches the default capture, neither fake nor capture="allocator"')
        to = Target(on_oom) if isinstance(on_oom, (str, os.PathLike)) else on_oom
        return OomOptions(to, events, is_alone)


def _of_environment(events: int) -> OomOptions | None:
    place = os.environ.get(VARIABLE)
    if not place:
        return None
    try:
        target = Target(place)
        target.check()
    except MemexportError as error:
        log.warning("memexport does not heed %s: %s", VARIABLE, error)
        return None
    return OomOptions(target, events, is_alone=False)
