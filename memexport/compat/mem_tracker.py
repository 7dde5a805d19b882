"""`MemTracker`: bytes per device and category, now, at the peak and around every module."""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import torch
from torch import nn

from memexport.compat._capture import RegisteredCapture
from memexport.compat._categories import MEM_TRACKER, RefTypes, taken_bytes
from memexport.compat._fold import RESTART, SnapshotFold
from memexport.compat._module_stats import MEM_TRACKER_STATES, ModState, ModuleStats, State, States
from memexport.compat._snapshots import (
    Snapshot,
    rendered,
    rendered_states,
    rendered_states_table,
    rendered_table,
)
from memexport.compat.mod_tracker import GLOBAL, ModTracker
from memexport.model import Category
from memexport.tracker import rows
from memexport.tracker.forked import stop_in_forked_child
from memexport.tracker.storages import tensors_in
from memexport.tracker.stream import DrainThread

_FLUSH_INTERVAL_S: Final = 1.0
_NO_STATS: Final = 0


class MemTracker:
    """Tracks the tensors that are made in its context, and those that it was told of before.

    ```python
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        model(batch).sum().backward()
        tracker.display_snapshot("current")
    tracker.display_modulewise_snapshots(depth=3, units="MiB")
    ```

    It can be entered again; its peak begins anew then. Any number of iterations may run in it: `peak` is that
    of all of them, the snapshots of a module are those of its latest. A new one begins when an outermost
    module is called that was called in this iteration already, or with `reset_mod_stats`.

    It never raises into the program: should memexport fail, there is one warning, and nothing more is seen.
    """

    _categories: ClassVar[RefTypes] = MEM_TRACKER
    _states: ClassVar[States] = MEM_TRACKER_STATES

    def __init__(self) -> None:
        self._capture = RegisteredCapture()
        self._mod_tracker = ModTracker()
        self._tracking: weakref.WeakKeyDictionary[nn.Module, ModuleStats] = weakref.WeakKeyDictionary()
        self._stats: weakref.WeakValueDictionary[int, ModuleStats] = weakref.WeakValueDictionary()
        self._stats_made = _NO_STATS
        self._iteration = 0
        self._outermost: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._depth = 0
        self._folding = threading.Lock()
        self._fold = SnapshotFold(
            self._capture.labels, self._capture.storages.devices, self._categories, self._states, self._stats
        )
        self._mark_code = self._capture.labels.code(rows.MARKER, None)
        self._places = {state: place for place, state in enumerate(self._states.members)}
        self._drain = self._new_drain()

    def _new_drain(self) -> DrainThread:
        return DrainThread(self._capture.log_bytes, self._take, _FLUSH_INTERVAL_S)

    # ---- life cycle

    def __enter__(self) -> MemTracker:
        self._depth += 1
        if self._depth == 1:
            self._mark(_NO_STATS, RESTART)
            stop_in_forked_child(self._capture)
            self._drain = self._new_drain()
            self._drain.start()
            self._capture.start()
            self._watch_modules()
            self._mod_tracker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._mod_tracker.__exit__()
            self._mod_tracker.clear_user_hooks()
            self._capture.stop()
            self._drain.stop()

    def _watch_modules(self) -> None:
        self._mod_tracker.register_user_hooks(
            self._forward_starts, self._forward_ends, self._backward_starts, self._backward_ends
        )

    def _take(self, chunk: bytes) -> None:
        try:
            with self._folding:
                self._fold.add(chunk)
        except Exception as error:
            self._capture.fail(error)

    # ---- what is asked of it

    @property
    def memory_tracking(self) -> weakref.WeakKeyDictionary[nn.Module, ModuleStats]:
        """What is known of each module that was called."""
        self._drain.flush()
        return self._tracking

    def track_external(self, *external: Any) -> None:
        """Track modules, optimizers and tensors that were made outside of the context, before entering it.

        Tensors are "Other"; nested tuples, lists and dicts are searched, None is passed over.

        Raises:
            TypeError: one is something else.
        """
        for one in _flattened(external):
            match one:
                case torch.Tensor():
                    self._capture.claims.tensors([one], Category.INPUT, None)
                case nn.Module():
                    self._capture.register_model(one)
                case torch.optim.Optimizer():
                    self._capture.claims.optimizer(one)
                case None:
                    pass
                case _:
                    raise TypeError(
                        f"a {type(one).__name__} cannot be tracked: give modules, optimizers, tensors"
                    )

    def get_tracker_snapshot(self, type: str = "current") -> Snapshot:  # noqa: A002 - torch's name for it
        """Bytes by device and category, and their "Total": "current", or at the "peak" of each device.

        Raises:
            ValueError: `type` is neither.
        """
        if type not in ("current", "peak"):
            raise ValueError(f"Invalid type {type}")
        self._drain.flush()
        with self._folding:
            return self._fold.current() if type == "current" else self._fold.peak()

    def display_snapshot(
        self,
        type: str = "current",  # noqa: A002 - torch's name for it
        units: str = "B",
        tabulate: bool = False,
    ) -> None:
        """Print a snapshot, in "B", "KiB", "MiB" or "GiB", as lines or as a table.

        Raises:
            ValueError: no such type or unit.
        """
        snapshot = self.get_tracker_snapshot(type)
        print(rendered_table(snapshot, units) if tabulate else rendered(snapshot, units))

    def display_modulewise_snapshots(self, depth: int = 2, units: str = "B", tabulate: bool = False) -> None:
        """Print the snapshots of every module at most this deep, the root being 1.

        Raises:
            ValueError: no such unit.
        """
        for stats in sorted(self.memory_tracking.values(), key=lambda stats: _natural_order(stats.mod_fqn)):
            if stats.mod_fqn.count(".") < depth:
                print(f"Module:  {stats.mod_fqn}")
                print((rendered_states_table if tabulate else rendered_states)(stats.snapshots, units))

    def reset_mod_stats(self) -> None:
        """Forget what is known of modules."""
        self._tracking.clear()

    # ---- modules

    def _forward_starts(self, module: nn.Module, args: Any) -> None:
        self._notice_iteration(module)
        stats = self._stats_of(module)
        in_backward = self._mod_tracker.is_bw
        if not in_backward:
            stats.input_mem = self._tracked_bytes(args)
        self._mark(stats.number, ModState.PRE_FW_AC if in_backward else ModState.PRE_FW)

    def _forward_ends(self, module: nn.Module, _args: Any, output: Any) -> None:
        stats = self._tracking.get(module)
        if stats is None:  # told to forget it meanwhile
            return
        in_backward = self._mod_tracker.is_bw
        if not in_backward:
            stats.output_mem = self._tracked_bytes(output)
        self._mark(stats.number, ModState.POST_FW_AC if in_backward else ModState.POST_FW)

    def _backward_starts(self, module: nn.Module | None, _gradients: Any) -> None:
        self._mark_module(module, ModState.PRE_BW)

    def _backward_ends(self, module: nn.Module | None, _gradients: Any) -> None:
        self._mark_module(module, ModState.POST_BW)

    def _mark_module(self, module: nn.Module | None, state: State) -> None:
        stats = self._tracking.get(module) if module is not None else None
        if stats is not None:
            self._mark(stats.number, state)

    def _notice_iteration(self, module: nn.Module) -> None:
        """A new iteration begins if this module is an outermost one and was called in this one."""
        if self._mod_tracker.is_bw or len(self._mod_tracker.parents - {GLOBAL}) > 1:
            return
        if module in self._outermost:
            self._iteration += 1
            self._outermost.clear()
        self._outermost.add(module)

    def _stats_of(self, module: nn.Module) -> ModuleStats:
        """What is known of a module that is called; anew in a new iteration."""
        stats = self._tracking.get(module)
        if stats is not None and (self._mod_tracker.is_bw or stats.iteration == self._iteration):
            return stats
        self._stats_made += 1
        stats = ModuleStats(
            module,
            self._mod_tracker.get_known_fqn(module) or type(module).__name__,
            number=self._stats_made,
            iteration=self._iteration,
            devices=self._capture.storages.devices,
            members=self._categories.members,
        )
        self._tracking[module] = self._stats[stats.number] = stats
        return stats

    def _tracked_bytes(self, values: Any) -> int:
        storages, found = self._capture.storages, 0
        for tensor in tensors_in(values):
            known = storages.known(tensor)
            if known is not None:
                found += taken_bytes(max(known.size, 0), tensor.device.type)
        return found

    def _mark(self, number: int, state: State | int) -> None:
        """Log that a module is in this state now."""
        place = state if isinstance(state, int) else self._places[state]
        context = self._capture.running.thread().context
        row = rows.ROW.pack(self._mark_code, context, time.perf_counter_ns(), number, place)
        self._capture.log_bytes.extend(row)


def _flattened(values: Any) -> Iterator[Any]:
    if isinstance(values, (tuple, list)):
        for value in values:
            yield from _flattened(value)
    elif isinstance(values, dict):
        yield from _flattened(list(values.values()))
    else:
        yield values


def _natural_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts "layers.10" behind "layers.9"."""
    return [(int(part), "") if part.isdigit() else (-1, part.lower()) for part in re.split("([0-9]+)", name)]
