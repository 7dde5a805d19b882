"""The categories of torch's memory trackers, and which of them a storage is of at every moment.

Here a category says where a storage was made, until something claims it: a forward makes activations, a
backward temporaries, an optimizer its state. `memexport.Tracker` looks at how long it lives instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from memexport.model import Category, Column, Phase

TOTAL: Final = "Total"
_CUDA_BLOCK_BYTES: Final = 1 if int(os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING", "0")) else 512
"""What CUDA's caching allocator rounds up to."""


class MemRefType(StrEnum):
    """What `MemTracker` tells apart."""

    PARAM = "Parameter"
    BUFFER = "Buffer"
    GRAD = "Gradient"
    ACT = "Activation"
    TEMP = "Temp"
    OPT = "Optstate"
    OTH = "Other"


class FSDPRefType(StrEnum):
    """What `FSDPMemTracker` tells apart."""

    SHARDED_PARAM = "Sharded Param"
    UNSHARDED_PARAM = "Unsharded Param"
    BUFFER = "Buffer"
    SHARDED_GRAD = "Sharded Grad"
    UNSHARDED_GRAD = "Unsharded Grad"
    ACT = "Activation"
    TEMP = "Temp"
    ALL_GATHER = "All Gather"
    REDUCE_SCATTER = "Reduce Scatter"
    OPT = "OptState"
    INP = "Inputs"


RefType = MemRefType | FSDPRefType
ByCategory = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RefTypes:
    """The categories of one tracker.

    Attributes:
        members: in the order in which snapshots show them.
        of_phase: by `Phase`, the place among `members` of a storage that nothing claimed.
        of_claim: by `Category`, of one that was claimed.
    """

    members: tuple[RefType, ...]
    of_phase: ByCategory
    of_claim: ByCategory

    def places(self, claimed: Column, phase: Column) -> Column:
        """The place among `members` of storages, by what claimed them and where they were made."""
        unclaimed = claimed == Category.UNATTRIBUTED
        places: Column = np.where(unclaimed, self.of_phase[phase], self.of_claim[claimed])
        return places


def _ref_types(
    members: tuple[RefType, ...],
    phases: Mapping[Phase, RefType],
    claims: Mapping[Category, RefType],
    *,
    otherwise_made: RefType,
    otherwise_claimed: RefType,
) -> RefTypes:
    of_phase = np.full(len(Phase), members.index(otherwise_made), np.uint8)
    of_claim = np.full(max(Category) + 1, members.index(otherwise_claimed), np.uint8)
    for phase, member in phases.items():
        of_phase[phase] = members.index(member)
    for category, member in claims.items():
        of_claim[category] = members.index(member)
    return RefTypes(members, of_phase, of_claim)


MEM_TRACKER: Final = _ref_types(
    tuple(MemRefType),
    {Phase.BACKWARD: MemRefType.TEMP, Phase.OPTIMIZER: MemRefType.OPT},
    {
        Category.PARAMETER: MemRefType.PARAM,
        Category.SHARDED_PARAMETER: MemRefType.PARAM,
        Category.UNSHARDED_PARAMETER: MemRefType.PARAM,
        Category.BUFFER: MemRefType.BUFFER,
        Category.GRADIENT: MemRefType.GRAD,
        Category.SHARDED_GRADIENT: MemRefType.GRAD,
        Category.UNSHARDED_GRADIENT: MemRefType.GRAD,
        Category.OPTIMIZER_STATE: MemRefType.OPT,
        Category.ALL_GATHER: MemRefType.TEMP,
        Category.REDUCE_SCATTER: MemRefType.TEMP,
    },
    otherwise_made=MemRefType.ACT,
    otherwise_claimed=MemRefType.OTH,
)
FSDP_MEM_TRACKER: Final = _ref_types(
    tuple(FSDPRefType),
    {Phase.BACKWARD: FSDPRefType.TEMP, Phase.OPTIMIZER: FSDPRefType.OPT},
    {
        Category.PARAMETER: FSDPRefType.SHARDED_PARAM,
        Category.SHARDED_PARAMETER: FSDPRefType.SHARDED_PARAM,
        Category.UNSHARDED_PARAMETER: FSDPRefType.UNSHARDED_PARAM,
        Category.BUFFER: FSDPRefType.BUFFER,
        Category.GRADIENT: FSDPRefType.SHARDED_GRAD,
        Category.SHARDED_GRADIENT: FSDPRefType.SHARDED_GRAD,
        Category.UNSHARDED_GRADIENT: FSDPRefType.UNSHARDED_GRAD,
        Category.OPTIMIZER_STATE: FSDPRefType.OPT,
        Category.ALL_GATHER: FSDPRefType.ALL_GATHER,
        Category.REDUCE_SCATTER: FSDPRefType.REDUCE_SCATTER,
    },
    otherwise_made=FSDPRefType.ACT,
    otherwise_claimed=FSDPRefType.INP,
)


def taken_bytes(size_bytes: int, device_type: str) -> int:
    """What a storage of this size takes of its device's memory."""
    if device_type != "cuda":
        return size_bytes
    return -(-size_bytes // _CUDA_BLOCK_BYTES) * _CUDA_BLOCK_BYTES


def taken_bytes_of_each(size_bytes: Column, device_type: str) -> Column:
    """The same for a column of sizes."""
    if device_type != "cuda":
        return size_bytes
    taken: Column = -(-size_bytes // _CUDA_BLOCK_BYTES) * _CUDA_BLOCK_BYTES
    return taken
