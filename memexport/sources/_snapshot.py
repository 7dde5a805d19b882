"""A torch.cuda memory snapshot as columns: what is left of the pickle's dicts once they are read.

`_snapshot_pickle` makes one from a file, `cuda_snapshot` makes events from one. Names follow torch's
`torch/csrc/cuda/memory_snapshot.cpp`; sizes are bytes, times microseconds as in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from memexport.model import Column

NO_TIME: Final = -1
UNKNOWN: Final = -1
"""The null of sizes, which are ≥ 0 in a snapshot."""

TRACE_COLUMNS: Final[Mapping[str, np.dtype[Any]]] = {
    "action": np.dtype("u1"),  # index into `Snapshot.actions`
    "address": np.dtype("u8"),  # 0 if the entry has none, as an "oom"
    "size": np.dtype("i8"),
    "stream": np.dtype("u8"),
    "time_us": np.dtype("i8"),  # `NO_TIME` before torch 2.2
    "stack": np.dtype("u4"),  # id in `Tables.stacks`, outermost frame first; 0 for none
    "device_free": np.dtype("i8"),  # of an "oom"; `UNKNOWN` elsewhere
    "compile_context": np.dtype("u4"),  # string ids in `Tables.strings`; 0 for none
    "user_metadata": np.dtype("u4"),
}

SEGMENT_COLUMNS: Final[Mapping[str, np.dtype[Any]]] = {
    "device": np.dtype("i4"),
    "address": np.dtype("u8"),
    "total_size": np.dtype("i8"),
    "stream": np.dtype("u8"),
    "segment_type": np.dtype("u4"),  # string id: "large", "small"
    "pool": np.dtype("u8"),  # `segment_pool_id` packed: first << 32 | second; (0, 0) is the default pool
    "is_expandable": np.dtype("u1"),
    "stack": np.dtype("u4"),
}

BLOCK_COLUMNS: Final[Mapping[str, np.dtype[Any]]] = {
    "segment": np.dtype("u4"),  # row of the segment that it lies in
    "address": np.dtype("u8"),  # from the file, or segment address + sum of the earlier blocks' sizes
    "size": np.dtype("i8"),
    "requested_size": np.dtype("i8"),  # the history's real_size in old files; `UNKNOWN` if nothing says it
    "state": np.dtype("u4"),  # string id: "active_allocated", "active_pending_free", "inactive", …
    "stack": np.dtype("u4"),
}

Columns = dict[str, Column]
"""Equal-length columns by name, of the types above."""


@dataclass(frozen=True)
class Annotation:
    """An entry of `external_annotations`: where a region of the user's starts or ends."""

    name: str
    stage: str
    device: int
    time_us: int


@dataclass(frozen=True)
class Snapshot:
    """Everything that a snapshot file says.

    Attributes:
        actions: the distinct actions of all entries, in the order in which they first came.
        traces: `TRACE_COLUMNS` for each device index, in the file's order of entries.
        segments, blocks: `SEGMENT_COLUMNS` and `BLOCK_COLUMNS`.
        settings: `allocator_settings` as text.
        trace_overflowed: `trace_alloc_overflowed`; None if the file does not say.
        ignored: what was not understood, by what it is ("key 'x' of a trace entry"), with how often.
    """

    actions: tuple[str, ...]
    traces: tuple[Columns, ...]
    segments: Columns
    blocks: Columns
    annotations: tuple[Annotation, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    trace_overflowed: bool | None = None
    ignored: Counter[str] = field(default_factory=Counter)
