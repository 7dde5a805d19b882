"""`MemoryTracker`: the device's counters after every operator, to be summed up, plotted and saved."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from memexport import pipeline
from memexport.compat._operator_table import OperatorStats, OperatorTable, Trace
from memexport.compat._plots import show
from memexport.errors import UsageError
from memexport.sources.restricted_pickle import loads
from memexport.tracker import Tracker

_PICKLES: Final = (".pickle", ".pkl")
_RULE: Final = "-" * 48


class MemoryTracker:
    """Records the memory of a model's operators from `start_monitor` to `stop`.

    ```python
    tracker = MemoryTracker()
    tracker.start_monitor(model)
    model(batch).sum().backward()
    tracker.stop()
    tracker.summary()
    tracker.save_stats("run.memx")
    ```

    Runs on the CPU too, where tensors are added up. An operator is called
    "<module>.forward.<operator>_<running number>", in backward "<module>.backward.<…>", with the module that
    really calls it; the root's name is empty.
    """

    def __init__(self) -> None:
        self._tracker: Tracker | None = None
        self._table: OperatorTable | None = None
        self._known: OperatorStats | None = OperatorStats()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._recording: Path | None = None

    # ---- recording

    def start_monitor(self, root_module: nn.Module) -> None:
        """Forget what was recorded, and begin anew.

        Raises:
            AssertionError: it is recording already.
        """
        if self._tracker is not None:
            raise AssertionError("it is recording already: call stop() first")
        _empty_cache()
        self._folder = tempfile.TemporaryDirectory(prefix="memexport-")
        self._recording = Path(self._folder.name) / "run.memx"
        self._table, self._known = OperatorTable(type(root_module).__name__), None
        self._tracker = Tracker(root_module, exporters=[self._table, os.fspath(self._recording)])
        self._tracker.start()

    def stop(self) -> None:
        """Stop recording. Calling it twice does nothing."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.stop()
            self._known = None

    # ---- what was recorded

    @property
    def memories_allocated(self) -> Trace:
        """By the operator's index, its name and the MiB allocated after it. Complete after `stop`."""
        return self._stats().allocated

    @property
    def memories_active(self) -> Trace:
        """Likewise, with the MiB in active blocks."""
        return self._stats().active

    @property
    def memories_reserved(self) -> Trace:
        """Likewise, with the MiB reserved by the allocator."""
        return self._stats().reserved

    @property
    def _markers(self) -> dict[str, int]:
        return self._stats().markers

    @property
    def _num_alloc_retries(self) -> int:
        return self._stats().alloc_retries

    @property
    def _op_index(self) -> int:
        return len(self._stats().allocated)

    def _stats(self) -> OperatorStats:
        if self._known is not None:
            return self._known
        stats = self._table.stats() if self._table is not None else OperatorStats()
        if self._tracker is None:
            self._known = stats
        return stats

    def summary(self, top: int = 20) -> None:
        """Print the operators after which most more was allocated than before."""
        stats = self._stats()
        names_and_values = [stats.allocated[index] for index in range(len(stats.allocated))]
        before = [value for _, value in names_and_values]
        changes = {
            name: value - earlier
            for (name, value), earlier in zip(names_and_values[1:], before, strict=False)
        }
        ranked = sorted(changes.items(), key=lambda change: change[1], reverse=True)
        print(_RULE)
        print(f"The number of alloc retries are: {stats.alloc_retries}")
        print(f"Top {top} ops that generates memory are:")
        for name, value in ranked[:top]:
            print(f"{name}: {value}MB")
        print(_RULE)

    def show_traces(self, path: str = "") -> None:
        """Plot the three counters with matplotlib, together and each; of the file at `path`, if given.

        Raises:
            ImportError: matplotlib is not installed.
            InputError: the file cannot be read.
        """
        if path:
            self.load(path)
        stats = self._stats()
        counters = {"allocated": stats.allocated, "active": stats.active, "reserved": stats.reserved}
        show(counters, stats.markers)

    # ---- files

    def save_stats(self, path: str | os.PathLike[str]) -> None:
        """Write what was recorded, as a .memx archive unless the suffix says otherwise.

        .pickle and .pkl are for torch's own class; any other format that memexport writes is fine, too.

        Raises:
            UsageError: there is nothing to write but a pickle's contents, or it is still recording.
            OutputError: it cannot be written.
        """
        if Path(path).suffix in _PICKLES:
            self._write_pickle(Path(path))
            return
        if self._recording is None or self._tracker is not None:
            raise UsageError("there is no complete recording yet", hint="start_monitor(model), then stop()")
        to = None if _names_a_format(path) else "archive"
        pipeline.convert(self._recording, path, to=to, overwrite=True)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what `save_stats` wrote, here or in torch, or any other recording. Nothing in it is executed.

        Raises:
            InputError: it cannot be read.
        """
        with pipeline.open(path) as recording:
            if recording.info.format == "torch.memory_tracker":
                self._known = _from_pickle(loads(recording.path.read_bytes()))
            else:
                table = OperatorTable()
                pipeline.run(recording, [table])
                self._known = table.stats()
        self._recording = Path(path)

    def _write_pickle(self, path: Path) -> None:
        stats = self._stats()
        fields = {
            "memories_allocated": stats.allocated,
            "memories_active": stats.active,
            "memories_reserved": stats.reserved,
            "markers": stats.markers,
            "num_alloc_retries": stats.alloc_retries,
        }
        with path.open("wb") as file:
            pickle.dump(fields, file, pickle.HIGHEST_PROTOCOL)


def _from_pickle(fields: Any) -> OperatorStats:
    """What a pickle that the source has accepted says."""
    return OperatorStats(
        fields["memories_allocated"],
        fields["memories_active"],
        fields["memories_reserved"],
        fields["markers"],
        fields["num_alloc_retries"],
    )


def _names_a_format(path: str | os.PathLike[str]) -> bool:
    try:
        pipeline.exporter_to(path)
    except UsageError:
        return False
    return True


def _empty_cache() -> None:
    """Give back what the accelerator's allocator keeps but does not use."""
    device_module: Any = torch.get_device_module()
    if hasattr(device_module, "empty_cache"):
        device_module.empty_cache()
