"""A made-up recording of a transformer in training, as large as wanted and made in seconds.

One training step is laid out event by event, its memory handed out by a small caching allocator; every
further step repeats it with other times. So sizes, addresses and modules repeat from step to step as they do
in real training, and times do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memexport.model import (
    NULLS,
    Category,
    Column,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingInfo,
    StringTable,
    Tables,
)

START_TIME_UNIX_NS = 1_750_000_000_000_000_000
LAYERS = 24
LEAVES = ("ln_1", "attn.qkv", "attn.sdpa", "attn.proj", "ln_2", "mlp.fc", "mlp.act", "mlp.proj")
LEAF_CLASSES = ("LayerNorm", "Linear", "Attention", "Linear", "LayerNorm", "Linear", "GELU", "Linear")
FORWARD_OPERATORS = ("view", "addmm", "t", "mul.Tensor", "native_layer_norm", "_to_copy")
BACKWARD_OPERATORS = (
    "mm", "mul.Tensor", "t", "sum.dim_IntList", "gelu_backward", "native_layer_norm_backward", "add.Tensor",
    "view", "_softmax_backward_data",
)  # fmt: skip
OPTIMIZER_OPERATORS = ("_foreach_mul_.Scalar", "_foreach_addcdiv_.ScalarList")
# Bytes of typical activations at batch 8 × 1024 tokens × width 1024, half precision.
SIZES = tuple(1024 * k for k in (2, 4, 16, 96, 512, 4096, 16384, 16384, 49152, 65536))

# How long an event of each kind takes to come after the one before it: median nanoseconds, spread.
MEDIAN_NS = {
    EventKind.ALLOCATION: 2_600,
    EventKind.RELEASE: 900,
    EventKind.OPERATOR: 11_000,
    EventKind.SPAN: 1_400,
    EventKind.MARKER: 300,
}
SPREAD = 0.6
LEAST_GAP_NS = 40
"""So that a quarter of it still has a nanosecond for each of the four levels that may begin in one gap."""


@dataclass
class _Step:
    """One training step under construction: a row an event, and what the allocator has in use."""

    strings: StringTable
    random: np.random.Generator
    rows: list[tuple[int, ...]] = field(default_factory=list)
    free: dict[int, list[int]] = field(default_factory=dict)
    top: int = 0x7F30_0000_0000
    phase: Phase = Phase.FORWARD
    module: int = 0
    thread: int = 0

    def add(
        self, kind: EventKind, first: int, name: int, size: int, category: Category, address: int
    ) -> None:
        """Append an event that began when row `first` was still to come (its own row: at one moment)."""
        self.rows.append(
            (kind, first, name, self.module, self.thread, self.phase, category, size, address),
        )

    def allocate(self, name: int, size: int, category: Category) -> tuple[int, int, Category]:
        """An ALLOCATION; the block (address, size, category) to release."""
        blocks = self.free.setdefault(size, [])
        if not blocks:
            blocks.append(self.top)
            self.top += -(-size // 512) * 512
        address = blocks.pop()
        self.add(EventKind.ALLOCATION, len(self.rows), name, size, category, address)
        return address, size, category

    def release(self, block: tuple[int, int, Category]) -> None:
        """A RELEASE of the block."""
        address, size, category = block
        self.free[size].append(address)
        self.add(EventKind.RELEASE, len(self.rows), 0, size, category, address)

    def operator(self, name: str, category: Category) -> tuple[int, int, Category] | None:
        """An OPERATOR that allocates nine times out of ten; its block."""
        first, block = len(self.rows), None
        name_id = self.strings.intern(f"aten.{name}" + ("" if "." in name else ".default"))
        if self.random.random() < 0.9:
            block = self.allocate(name_id, int(self.random.choice(SIZES)), category)
        self.add(EventKind.OPERATOR, first, name_id, block[1] if block else 0, Category.UNKNOWN, 0)
        return block

    def span(self, name: str, first: int, module: int) -> None:
        """A SPAN over everything since row `first`."""
        outer, self.module = self.module, module
        self.add(EventKind.SPAN, first, self.strings.intern(name), NULLS["size_bytes"], Category.UNKNOWN, 0)
        self.module = outer


def _leaf(step: _Step, layer: int, leaf: int, saved: list[tuple[int, int, Category]]) -> None:
    """The operators of one module's call: half of what it makes is kept in `saved` for backward."""
    step.module = step.strings.intern(f"transformer.layers.{layer}.{LEAVES[leaf]}")
    first, temporary = len(step.rows), []
    for position, name in enumerate(FORWARD_OPERATORS):
        keep = (position + leaf) % 2 == 0
        block = step.operator(name, Category.ACTIVATION if keep else Category.TEMPORARY)
        if block is not None:
            (saved if keep else temporary).append(block)
        if len(temporary) > 1:
            step.release(temporary.pop(0))
    for block in temporary:
        step.release(block)
    step.span(LEAF_CLASSES[leaf], first, step.module)


def _forward(step: _Step, saved: list[tuple[int, int, Category]]) -> None:
    step.phase, step.thread = Phase.FORWARD, step.strings.intern("MainThread")
    first = len(step.rows)
    for layer in range(LAYERS):
        first_of_layer = len(step.rows)
        for leaf in range(len(LEAVES)):
            _leaf(step, layer, leaf, saved)
        step.span("Block", first_of_layer, step.strings.intern(f"transformer.layers.{layer}"))
    step.span("forward", first, 0)


def _backward(step: _Step, saved: list[tuple[int, int, Category]]) -> list[tuple[int, int, Category]]:
    """The gradients it leaves."""
    step.phase, step.thread = Phase.BACKWARD, step.strings.intern("pt_autograd_0")
    gradients, temporary = [], []
    first, kept = len(step.rows), len(saved) / (LAYERS * len(LEAVES) * len(BACKWARD_OPERATORS))
    for layer in reversed(range(LAYERS)):
        for leaf in reversed(range(len(LEAVES))):
            step.module = step.strings.intern(f"transformer.layers.{layer}.{LEAVES[leaf]}")
            first_of_leaf = len(step.rows)
            for position, name in enumerate(BACKWARD_OPERATORS):
                gradient = position == 0
                block = step.operator(name, Category.GRADIENT if gradient else Category.TEMPORARY)
                if block is not None:
                    (gradients if gradient else temporary).append(block)
                if len(temporary) > 3:
                    step.release(temporary.pop(0))
                if saved and step.random.random() < kept * 1.02:
                    step.release(saved.pop())
            step.span(LEAF_CLASSES[leaf], first_of_leaf, step.module)
    for block in (*temporary, *saved[::-1]):
        step.release(block)
    step.span("backward", first, 0)
    return gradients


def _optimizer(step: _Step, gradients: list[tuple[int, int, Category]]) -> None:
    step.phase, step.thread, step.module = Phase.OPTIMIZER, step.strings.intern("MainThread"), 0
    first = len(step.rows)
    for _ in range(LAYERS * len(LEAVES)):
        for name in OPTIMIZER_OPERATORS:
            block = step.operator(name, Category.TEMPORARY)
            if block is not None:
                step.release(block)
    for block in gradients:
        step.release(block)
    step.span("optimizer", first, 0)


def _layout(strings: StringTable, seed: int) -> npt.NDArray[np.int64]:
    """One step as an array: columns kind, first, name, module, thread, phase, category, size, address."""
    step = _Step(strings, np.random.default_rng(seed))
    saved: list[tuple[int, int, Category]] = []
    step.thread = strings.intern("MainThread")
    step.add(EventKind.MARKER, 0, strings.intern("step"), NULLS["size_bytes"], Category.UNKNOWN, 0)
    _forward(step, saved)
    _optimizer(step, _backward(step, saved))
    step.module, step.phase = 0, Phase.UNKNOWN
    step.span("step", 0, 0)
    return np.array(step.rows, np.int64)


def _levels(
    first: npt.NDArray[np.int64], lasting: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How deep each lasting row lies among those that begin with one row (0: outermost), and their count.

    Rows stand in the order of their ends, so the last of those that begin together is around the others.
    """
    depth, levels = np.zeros(len(first), np.int64), np.ones(len(first), np.int64)
    rows = np.flatnonzero(lasting)[::-1]
    rows = rows[np.argsort(first[rows], kind="stable")]
    _, group, count = np.unique(first[rows], return_inverse=True, return_counts=True)
    depth[rows] = np.arange(len(rows)) - (np.cumsum(count) - count)[group]
    levels[rows] = count[group]
    return depth, levels


class _Recording:
    """Repeats the layout of a step; keeps what runs on from batch to batch."""

    def __init__(self, layout: npt.NDArray[np.int64], seed: int) -> None:
        self.layout = layout
        self.random = np.random.default_rng(seed + 1)
        kinds = layout[:, 0]
        self.medians = np.array([MEDIAN_NS.get(EventKind(kind), 0) for kind in range(1, 7)])[kinds - 1]
        signed = np.where(kinds == EventKind.ALLOCATION, layout[:, 7], 0)
        signed = np.where(kinds == EventKind.RELEASE, -layout[:, 7], signed)
        self.allocated = np.cumsum(signed)
        self.lasting = (kinds == EventKind.OPERATOR) | (kinds == EventKind.SPAN)
        self.depth, self.levels = _levels(layout[:, 1], self.lasting)
        self.end_time_unix_ns = START_TIME_UNIX_NS

    def prelude(self) -> EventBatch:
        """What lives before the first step: parameters and optimizer state."""
        count = 3 * LAYERS * len(LEAVES)
        sizes = np.resize(np.array([8, 8192, 3, 4096], np.int64) * 1024, count)
        self.allocated = self.allocated + int(sizes.sum())
        return EventBatch(
            kind=np.full(count, EventKind.ALLOCATION),
            time_unix_ns=START_TIME_UNIX_NS,
            category=np.repeat([Category.PARAMETER, Category.OPTIMIZER_STATE], [count // 3, count * 2 // 3]),
            device=0,
            rank=0,
            size_bytes=sizes,
            allocated_bytes=np.cumsum(sizes),
            active_bytes=np.cumsum(sizes),
            address=0x7F20_0000_0000 + np.cumsum(sizes),
        )

    def times(self) -> tuple[Column, Column]:
        """Start times and durations of the events of one more step."""
        noise = np.exp(self.random.normal(0.0, SPREAD, len(self.layout)))
        gaps = np.maximum(self.medians * noise, LEAST_GAP_NS).astype(np.int64)
        ends = self.end_time_unix_ns + np.cumsum(gaps)
        first = self.layout[:, 1]
        self.end_time_unix_ns = int(ends[-1])
        # All that lasts begins in the first quarter of the gap before its first event, each level in a part
        # of that quarter: what is outside always before what it holds.
        parts = (self.depth + 0.5 * self.random.random(len(gaps))) / self.levels
        starts = ends[first] - gaps[first] + (gaps[first] * 0.25 * parts).astype(np.int64)
        starts = np.where(self.lasting, starts, ends)
        return starts, np.where(self.lasting, ends - starts, NULLS["duration_ns"])

    def step(self, number: int) -> dict[str, Column]:
        """The columns of one more step."""
        kind, _, name, module, thread, phase, category, size, address = self.layout.T
        starts, durations = self.times()
        length = len(self.layout)
        return {
            "kind": kind, "time_unix_ns": starts, "duration_ns": durations, "name": name, "module": module,
            "thread": thread, "phase": phase, "category": category, "size_bytes": size, "address": address,
            "step": np.full(length, number), "allocated_bytes": self.allocated,
            "device": np.where(kind == EventKind.MARKER, NULLS["device"], 0),
        }  # fmt: skip


def _batches(
    recording: _Recording, start: EventBatch, operators: int, batch_size: int
) -> Iterator[EventBatch]:
    yield start
    operators_in_step = int(np.count_nonzero(recording.layout[:, 0] == EventKind.OPERATOR))
    pending: list[EventBatch] = []
    for number in range(-(-operators // operators_in_step)):
        columns = recording.step(number)
        if operators < operators_in_step:
            last = int(np.flatnonzero(columns["kind"] == EventKind.OPERATOR)[operators - 1])
            columns = {name: column[: last + 1] for name, column in columns.items()}
        operators -= operators_in_step
        pending.append(EventBatch(**columns, active_bytes=columns["allocated_bytes"], rank=0))
        whole = EventBatch.concat(pending)
        full = len(whole) // batch_size * batch_size
        for first in range(0, full, batch_size):
            yield _with_constants(whole.select(slice(first, first + batch_size)))
        pending = [whole.select(slice(full, None))]
    if pending and len(pending[0]):
        yield _with_constants(pending[0])


def _with_constants(batch: EventBatch) -> EventBatch:
    """The batch with its constant columns at no memory, as a source gives them."""
    columns = batch.columns()
    for name in ("stack", "reserved_bytes"):
        del columns[name]
    return EventBatch(**{**columns, "rank": 0})


def synthetic_batches(
    operators: int, seed: int = 0, batch_size: int = 8192
) -> tuple[RecordingInfo, Tables, Iterator[EventBatch]]:
    """A recording of this many operators, about 2.9 events each: allocation, release, module span.

    The first batch holds the parameters and the optimizer's state; the others have `batch_size` events, the
    last one fewer. What lasts nests (step, phase, block, module, operator): each begins before what it holds
    and ends after it. `allocated_bytes` is exactly the sum of what was allocated less what was released;
    `active_bytes` equals it, `reserved_bytes` is null. The same arguments give the same events.
    """
    tables = Tables()
    recording = _Recording(_layout(tables.strings, seed), seed)
    start = recording.prelude()
    info = RecordingInfo(
        producer="memexport",
        producer_version="synthetic",
        start_time_unix_ns=START_TIME_UNIX_NS,
        rank=0,
        world_size=1,
        devices=[Device("cuda", 0, "Synthetic", None, 80 * 2**30)],
    )
    return info, tables, _batches(recording, start, operators, batch_size)
