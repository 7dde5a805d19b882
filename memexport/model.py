"""The vocabulary: what an event is, how a batch of them lies in memory, what a recording says of itself.

Everything that memexport reads becomes a stream of `EventBatch`; everything it writes is made from one.
Bytes and nanoseconds, integers, everywhere. What is not known is a null (`NULLS`), never 0.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION: Final = "1.1"
"""The version of this model and of the archive that carries it: major.minor."""


class EventKind(enum.IntEnum):
    """What happened."""

    OPERATOR = 1
    """A dispatched operator, or another named piece of work that moved memory."""
    ALLOCATION = 2
    RELEASE = 3
    SAMPLE = 4
    """The device's counters at a moment, without an event that changed them."""
    SPAN = 5
    """A step, phase, module call or annotation with a start and a length; see `EventBatch`."""
    MARKER = 6


class Phase(enum.IntEnum):
    """The part of a training step."""

    UNKNOWN = 0
    FORWARD = 1
    BACKWARD = 2
    RECOMPUTE = 3
    """A forward run again inside backward: activation checkpointing."""
    OPTIMIZER = 4
    OTHER = 5
    """Known to be none of the others: data loading, metrics, `zero_grad`."""


class Category(enum.IntEnum):
    """What the bytes are for."""

    UNKNOWN = 0
    """The source does not speak of categories at all."""
    PARAMETER = 1
    BUFFER = 2
    GRADIENT = 3
    ACTIVATION = 4
    TEMPORARY = 5
    OPTIMIZER_STATE = 6
    INPUT = 7
    OTHER = 8
    UNATTRIBUTED = 9
    """Counted by the device, but nothing that memexport tracks explains it."""
    SHARDED_PARAMETER = 10
    UNSHARDED_PARAMETER = 11
    SHARDED_GRADIENT = 12
    UNSHARDED_GRADIENT = 13
    ALL_GATHER = 14
    REDUCE_SCATTER = 15


COLUMNS: Final[Mapping[str, np.dtype[Any]]] = {
    "kind": np.dtype("u1"),
    "time_unix_ns": np.dtype("i8"),
    "duration_ns": np.dtype("i8"),
    "name": np.dtype("u4"),
    "module": np.dtype("u4"),
    "thread": np.dtype("u4"),
    "stack": np.dtype("u4"),
    "phase": np.dtype("u1"),
    "category": np.dtype("u1"),
    "device": np.dtype("i4"),
    "step": np.dtype("i4"),
    "rank": np.dtype("i4"),
    "size_bytes": np.dtype("i8"),
    "allocated_bytes": np.dtype("i8"),
    "active_bytes": np.dtype("i8"),
    "reserved_bytes": np.dtype("i8"),
    "address": np.dtype("u8"),
    "inputs": np.dtype("u4"),
    "input_bytes": np.dtype("i8"),
    "output_bytes": np.dtype("i8"),
}
"""Every column of an `EventBatch` and its type, in the order in which files keep them."""

UNKNOWN_SIZE: Final = -(2**63)
"""The null of `size_bytes`; −1 will not do, an operator may give one byte back."""

NULLS: Final[Mapping[str, int]] = {
    "kind": 0,
    "time_unix_ns": 0,
    "duration_ns": -1,
    "name": 0,
    "module": 0,
    "thread": 0,
    "stack": 0,
    "phase": Phase.UNKNOWN,
    "category": Category.UNKNOWN,
    "device": -1,
    "step": -1,
    "rank": -1,
    "size_bytes": UNKNOWN_SIZE,
    "allocated_bytes": -1,
    "active_bytes": -1,
    "reserved_bytes": -1,
    "address": 0,
    "inputs": 0,
    "input_bytes": -1,
    "output_bytes": -1,
}
"""What each column holds where a value is not known or has no meaning. `kind` and `time_unix_ns` always have
a value: theirs only fill columns that a caller left out."""

INDEX_CLOCK_NS: Final = 1_000
"""A source without a clock gives event number n the time n × this, and says `clock = "index"`."""

Column = npt.NDArray[Any]


class EventBatch:
    """A few thousand events as equal-length, read-only NumPy columns (`COLUMNS`).

    Order: events stand in the order in which they were recorded, which is the order in which they *ended*:
    `time_unix_ns` is when an event began, and its counters hold when it ended (`time_unix_ns` +
    `duration_ns`). So a module's SPAN comes after its operators, though it began before them. The exception
    is the MARKER "peak", which can only be written once the recording is over.

    `name` is the operator (`aten.addmm.default`), also for an ALLOCATION: the operator that made it (null for
    what lived before the recording). `module`, `phase`, `step`, `thread` say where the event happened; for a
    RELEASE, where the memory was given back. `category` of a RELEASE is that of its ALLOCATION. An ALLOCATION
    at an address that is live says anew what is there, when that is known only later: what was there ends,
    and no counter changes.

    A SPAN is one of four things: a module call has `module` set, and its class as `name`; a step is named
    "step" and has `step` set; a phase is named like its `phase` ("forward"); everything else is an
    annotation of the user's.

    `inputs` are an OPERATOR's tensor arguments, as text ("float32[8, 64], int64[8]"), and `stack` is the
    Python code that called it or made an ALLOCATION; both null unless the recorder was asked for them.
    `inputs` of a MARKER are the W3C traceparent of the OpenTelemetry span that was active, if any.

    `size_bytes` is what an ALLOCATION takes and what a RELEASE gives back (both ≥ 0); for an OPERATOR, its
    net change (what it allocated less what was released while it ran).

    `input_bytes` and `output_bytes` are of a module call: the storages of the tensors that it was called with
    and that it returned, each storage counted once and whole. Tensors are found within tuples, lists and
    dicts. Null for a call that raised (as torch.utils.checkpoint lets recomputations do that need not go on).

    Built from any of the columns; those left out are null throughout and take no memory. Arrays are
    converted to the column's type and made read-only views; the caller's own array stays writable but must
    not be written to any more.

    Raises:
        ValueError: a column of the wrong length or of an unknown name.
    """

    __slots__ = tuple(COLUMNS)

    kind: Column
    time_unix_ns: Column
    duration_ns: Column
    name: Column
    module: Column
    thread: Column
    stack: Column
    phase: Column
    category: Column
    device: Column
    step: Column
    rank: Column
    size_bytes: Column
    allocated_bytes: Column
    active_bytes: Column
    reserved_bytes: Column
    address: Column
    inputs: Column
    input_bytes: Column
    output_bytes: Column

    def __init__(self, *, kind: npt.ArrayLike, **columns: npt.ArrayLike) -> None:
        unknown = columns.keys() - COLUMNS.keys()
        if unknown:
            raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
        columns["kind"] = kind
        length = len(np.atleast_1d(np.asarray(kind)))
        for name, dtype in COLUMNS.items():
            values = np.asarray(columns.get(name, NULLS[name]), dtype=dtype)
            if values.ndim == 0:
                values = np.broadcast_to(values, (length,))
            elif values.shape != (length,):
                raise ValueError(f"column {name} has shape {values.shape}, not ({length},)")
            view = values.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an EventBatch is read-only")

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"EventBatch({len(self)} events)"

    def columns(self) -> dict[str, Column]:
        """Every column by name, in the order of `COLUMNS`. A scalar given for a column has stride 0 here."""
        return {name: getattr(self, name) for name in COLUMNS}

    def select(self, where: Any) -> EventBatch:
        """The events that a NumPy index picks: a slice (a view), a boolean mask or positions."""
        return EventBatch(**{name: column[where] for name, column in self.columns().items()})

    @staticmethod
    def concat(batches: Sequence[EventBatch]) -> EventBatch:
        """All events of the batches, in order; an empty sequence gives an empty batch."""
        if not batches:
            return EventBatch(kind=np.empty(0, np.uint8))
        return EventBatch(
            **{name: np.concatenate([getattr(batch, name) for batch in batches]) for name in COLUMNS}
        )


class StringTable(Sequence[str]):
    """Interned strings of a recording: a column holds ids, and the table only grows. Id 0 is null."""

    def __init__(self) -> None:
        self._strings: list[str] = [""]
        self._ids: dict[str, int] = {}

    def intern(self, string: str) -> int:
        """The id of the string; always the same one, and never 0."""
        found = self._ids.get(string)
        if found is None:
            found = self._ids[string] = len(self._strings)
            self._strings.append(string)
        return found

    def append(self, string: str) -> int:
        """Give the string the next id, even if it has one: for a file that says which id is which."""
        self._ids.setdefault(string, len(self._strings))
        self._strings.append(string)
        return len(self._strings) - 1

    def find(self, string: str) -> int | None:
        """The id of the string if some event may carry it, else None."""
        return self._ids.get(string)

    def get(self, string_id: int) -> str | None:
        """The string, or None for the null id 0."""
        return self._strings[string_id] if string_id else None

    def since(self, length: int) -> list[str]:
        """The strings with ids from `length` on: what was added since `len(table)` was that."""
        return self._strings[length:]

    def __getitem__(self, index: Any) -> Any:
        return self._strings[index]

    def __len__(self) -> int:
        return len(self._strings)

    def __iter__(self) -> Iterator[str]:
        return iter(self._strings)


class StackTable:
    """Interned call stacks, as a prefix tree: a node is a parent node and a frame, ids grow. Id 0 is null.

    A frame is a string id of the recording's `StringTable` ("train.py:41:step").
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[int, int]] = [(0, 0)]
        self._ids: dict[tuple[int, int], int] = {}

    def intern(self, frames: Iterable[int]) -> int:
        """The id of the stack of frames, outermost first; 0 for no frames."""
        node = 0
        for frame in frames:
            node = self.child(node, frame)
        return node

    def child(self, parent: int, frame: int) -> int:
        """The id of the stack that calls `frame` from the stack `parent`."""
        key = (parent, frame)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._nodes)
            self._nodes.append(key)
        return found

    def append(self, parent: int, frame: int) -> int:
        """Give the stack the next id, even if it has one: for a file that says which id is which."""
        self._ids.setdefault((parent, frame), len(self._nodes))
        self._nodes.append((parent, frame))
        return len(self._nodes) - 1

    def frames(self, stack_id: int) -> list[int]:
        """The frames' string ids, outermost first."""
        frames = []
        while stack_id:
            stack_id, frame = self._nodes[stack_id]
            frames.append(frame)
        return frames[::-1]

    def since(self, length: int) -> list[tuple[int, int]]:
        """The nodes (parent, frame) with ids from `length` on."""
        return self._nodes[length:]

    def __len__(self) -> int:
        return len(self._nodes)


@dataclass(frozen=True)
class Device:
    """A device with memory of its own.

    Attributes:
        type: torch's name for it: "cpu", "cuda", "xpu", "mps", or what its vendor registered.
        index: torch's index, None where the type has only one.
        name: what the vendor calls it, or None.
        uuid: the vendor's unique id, or None.
        capacity_bytes: the memory it has in all, or None.
    """

    type: str
    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    capacity_bytes: int | None = None

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


Clock = Literal["unix", "index"]


@dataclass(frozen=True)
class RecordingInfo:
    """What is true for the whole recording; None where it is not known.

    Attributes:
        format: the format that it was read from, as `memexport summary` names it.
        origin: of an archive, the format that was converted into it; None if it was recorded live.
        producer: the program that recorded it ("memexport", "torch"), and its version.
        schema_version: of the model: major.minor.
        clock: "unix": times are Unix nanoseconds. "index": the source has no clock, and event n has the time
            n × `INDEX_CLOCK_NS`.
        start_time_unix_ns: when recording began.
        devices: what the column `device` indexes. Grows with the stream, like the tables.
        options: the recorder's settings, as text.
        rank_names: what to call the process of a rank in a picture; archives do not keep it.
        unknown_fields: fields of the archive's header that this version does not know, as protobuf bytes:
            kept so that a copy loses nothing.
    """

    format: str = "memexport.archive"
    origin: str | None = None
    producer: str | None = None
    producer_version: str | None = None
    schema_version: str = SCHEMA_VERSION
    clock: Clock = "unix"
    start_time_unix_ns: int | None = None
    host: str | None = None
    pid: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    devices: list[Device] = field(default_factory=list)
    torch_version: str | None = None
    python_version: str | None = None
    command_line: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    rank_names: Mapping[int, str] = field(default_factory=dict)
    unknown_fields: bytes = b""


@dataclass(frozen=True)
class Tables:
    """What the ids in a recording's columns stand for. Both grow while batches are read."""

    strings: StringTable = field(default_factory=StringTable)
    stacks: StackTable = field(default_factory=StackTable)


@dataclass(frozen=True)
class RecordingEnd:
    """What is known only when a recording is over.

    Attributes:
        warnings: sentences for the reader, in order: what is missing or cannot be vouched for.
        dropped_events: events that were seen but not kept.
        alloc_retries: how often an allocator had to free its cache and try again; None if unknown.
        ooms: how many requests for memory failed; None if unknown.
    """

    warnings: tuple[str, ...] = ()
    dropped_events: int = 0
    alloc_retries: int | None = None
    ooms: int | None = None
