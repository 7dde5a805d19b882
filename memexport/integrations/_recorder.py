"""What the callbacks of training frameworks share: a tracker for each training, which it never stops."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Sequence

import torch
from torch import nn

from memexport.errors import MemexportError
from memexport.exporters import Exporter
from memexport.integrations._options import TrackerOptions, check
from memexport.integrations._outputs import name_with
from memexport.tracker import Tracker

log = logging.getLogger("memexport")

Output = str | os.PathLike[str] | Exporter


class Recorder:
    """Records from each `start` to the next `stop`.

    The second recording and every later one have their number in the names of their files: "run-fit2.memx".
    A recording that nobody stops is completed when the process ends.

    Args:
        what: what the framework calls a training: "fit".
        exporters: as of a `Tracker`.
        options: likewise.

    Attributes:
        tracker: of the recording that runs, or of the last one; None before the first.

    Raises:
        TypeError: there is no such option.
        UsageError: what a `Tracker` says of its arguments.
    """

    def __init__(self, what: str, exporters: Sequence[Output], options: TrackerOptions) -> None:
        check(options)
        self._what = what
        self._exporters = exporters
        self._options = options
        self._recordings = 0
        self._running: Tracker | None = None
        self.tracker: Tracker | None = None
        self._new_tracker((), (), exporters)  # says at once what is wrong with the arguments

    def start(self, *modules: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Begin a recording. If that cannot be, there is a warning, and the training goes on without."""
        self.stop()
        self._recordings += 1
        try:
            self._running = self._new_tracker(modules, optimizers, self._outputs()).start()
        except MemexportError as error:
            log.warning("memexport does not record: %s", error)
        else:
            self.tracker = self._running
            atexit.register(self._at_exit)

    def step(self) -> None:
        """A training step ends."""
        if self._running is not None:
            self._running.step()

    def mark(self, name: str) -> None:
        """Put a MARKER here."""
        if self._running is not None:
            self._running.mark(name)

    def take_peak(self) -> dict[str, float]:
        """What to log: bytes allocated at most on each device since the last call; nothing if none runs."""
        peaks = self._running.take_peak() if self._running is not None else {}
        return {f"memexport/peak_bytes/{device}": float(peak) for device, peak in peaks.items()}

    def stop(self, error: BaseException | None = None) -> None:
        """Complete the recording; `error` is what ended the training. Calling it twice does nothing."""
        running, self._running = self._running, None
        if running is not None:
            atexit.unregister(self._at_exit)
            running.__exit__(type(error) if error is not None else None, error, None)

    def _at_exit(self) -> None:
        # What Python has just shown the traceback of.
        self.stop(getattr(sys, "last_value", None))

    def _outputs(self) -> list[Output]:
        if self._recordings == 1:
            return list(self._exporters)
        # A bare number would be taken for a rank.
        number = f"{self._what}{self._recordings}"
        return [
            name_with(output, number) if isinstance(output, (str, os.PathLike)) else output
            for output in self._exporters
        ]

    def _new_tracker(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        exporters: Sequence[Output],
    ) -> Tracker:
        return Tracker(*modules, optimizer=optimizers, exporters=exporters, **self._options)
