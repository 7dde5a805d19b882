"""What a memory tracker knows of one module: snapshots before, after and at the peak of its passes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from memexport.compat._categories import TOTAL, RefType, taken_bytes
from memexport.compat._snapshots import Snapshot, snapshot_of
from memexport.model import Column
from memexport.tracker.storages import storage_of, tensors_in

MOST_SNAPSHOTS: Final = 1024
"""How many of each state are kept: the latest."""


class ModState(StrEnum):
    """When `MemTracker` takes a snapshot of a module."""

    PRE_FW = "Pre-Forward"
    POST_FW = "Post-Forward"
    PEAK_FW = "Peak-Forward"
    PRE_BW = "Pre-Backward"
    PRE_FW_AC = "Pre-Forward-AC"
    POST_FW_AC = "Post-Forward-AC"
    POST_BW = "Post-Backward"
    PEAK_BW = "Peak-Backward"


class FSDPModState(StrEnum):
    """When `FSDPMemTracker` takes a snapshot of a module."""

    BEF_PRE_FW = "Before Pre-Forward"
    AFT_PRE_FW = "After Pre-Forward"
    BEF_POST_FW = "Before Post-Forward"
    AFT_POST_FW = "After Post-Forward"
    BEF_PRE_BW = "Before Pre-Backward"
    AFT_PRE_BW = "After Pre-Backward"
    BEF_POST_BW = "Before Post-Backward"
    AFT_POST_BW = "After Post-Backward"
    PRE_FW_AC = "Pre-Forward AC"
    POST_FW_AC = "Post-Forward AC"
    PEAK_FW = "Peak Forward"
    PEAK_BW = "Peak Backward"


State = ModState | FSDPModState


@dataclass(frozen=True)
class States:
    """The states of one tracker, and which of them begin and end a pass with a peak.

    Attributes:
        members: a mark in the log has the place of its state here.
        peak_from: by the state that begins a pass, that of its peak.
        peak_until: by the state that ends a pass, that of its peak.
    """

    members: tuple[State, ...]
    peak_from: dict[State, State]
    peak_until: dict[State, State]


MEM_TRACKER_STATES: Final = States(
    tuple(ModState),
    {ModState.PRE_FW: ModState.PEAK_FW, ModState.PRE_BW: ModState.PEAK_BW},
    {ModState.POST_FW: ModState.PEAK_FW, ModState.POST_BW: ModState.PEAK_BW},
)
FSDP_MEM_TRACKER_STATES: Final = States(
    tuple(FSDPModState),
    {FSDPModState.BEF_PRE_FW: FSDPModState.PEAK_FW, FSDPModState.BEF_PRE_BW: FSDPModState.PEAK_BW},
    {FSDPModState.BEF_POST_FW: FSDPModState.PEAK_FW, FSDPModState.AFT_POST_BW: FSDPModState.PEAK_BW},
)


@dataclass
class Taken:
    """Bytes by place among the categories, a row for each device."""

    rows: Column

    def raise_to(self, device: int, row: Column) -> None:
        """Take the row for a device if it has more bytes."""
        if device >= len(self.rows):  # one that nothing was on before
            self.rows = np.pad(self.rows, ((0, device + 1 - len(self.rows)), (0, 0)))
        if row.sum() > self.rows[device].sum():
            self.rows[device] = row


class ModuleStats:
    """One module in its latest iteration. Bytes of several devices together, where not said otherwise.

    Attributes:
        mod_fqn: the module's name.
        input_mem: bytes of the tracked storages that it was called with last.
        output_mem: of those that it returned last.
        number: what marks in the log call it.
        iteration: counts the calls of outermost modules; see `MemTracker`.
    """

    def __init__(
        self,
        module: nn.Module,
        mod_fqn: str,
        *,
        number: int,
        iteration: int,
        devices: Sequence[torch.device],
        members: Sequence[RefType],
    ) -> None:
        self.mod_fqn = mod_fqn
        self.input_mem = 0
        self.output_mem = 0
        self.number = number
        self.iteration = iteration
        self._module = weakref.ref(module)
        self._devices = devices
        self._members = members
        self._taken: dict[State, list[Taken]] = {}
        self._latest_peak: Taken | None = None

    @property
    def parameter_mem(self) -> int:
        """Bytes of the module's parameters, with those of the modules below it."""
        module = self._module()
        return bytes_of(module.parameters()) if module is not None else 0

    @property
    def buffer_mem(self) -> int:
        """Bytes of its buffers, likewise."""
        module = self._module()
        return bytes_of(module.buffers()) if module is not None else 0

    @property
    def local_peak(self) -> dict[torch.device, int]:
        """The most bytes on each device in the pass that began last."""
        peak = self._latest_peak
        by_device = snapshot_of(peak.rows, self._devices, self._members) if peak is not None else {}
        return {device: row[TOTAL] for device, row in by_device.items()}

    @property
    def snapshots(self) -> dict[State, list[Snapshot]]:
        """The snapshots of each state, in order."""
        return {
            state: [snapshot_of(one.rows, self._devices, self._members) for one in list(taken)]
            for state, taken in list(self._taken.items())
        }

    def add(self, state: State, rows: Column) -> Taken:
        """Take the bytes at a state: a row per device, by place among the categories."""
        taken = Taken(rows)
        of_state = self._taken.setdefault(state, [])
        of_state.append(taken)
        if len(of_state) > MOST_SNAPSHOTS:
            del of_state[0]
        return taken

    def begin_peak(self, state: State, rows: Column) -> Taken:
        """A pass begins with these bytes; what is given back is to be raised while it runs."""
        self._latest_peak = self.add(state, rows.copy())
        return self._latest_peak


def bytes_of(values: Iterable[Any]) -> int:
    """What the storages of these tensors take; the storage of several counts once."""
    storages = {}
    for tensor in tensors_in(list(values)):
        storage = storage_of(tensor)
        if storage is not None and not tensor.is_meta:
            storages[id(storage)] = taken_bytes(int(storage.nbytes()), tensor.device.type)
    return sum(storages.values())
