"""How fast a summary folds events: python tools/bench/summary.py [events] [live storages]."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np

from memexport.analysis.summary import SummaryFold
from memexport.model import (
    Category,
    Device,
    EventBatch,
    EventKind,
    Phase,
    RecordingEnd,
    RecordingInfo,
    Tables,
)

BATCH = 8_192


def batches(events: int, live: int, tables: Tables) -> Iterator[EventBatch]:
    """A training loop in miniature: of five events two are operators, and storages come and go."""
    random = np.random.default_rng(0)
    names = [tables.strings.intern(f"aten.op{n}.default") for n in range(100)]
    modules = [tables.strings.intern(f"layers.{n}.mlp") for n in range(200)]
    pattern = [
        EventKind.ALLOCATION,
        EventKind.OPERATOR,
        EventKind.RELEASE,
        EventKind.OPERATOR,
        EventKind.SPAN,
    ]
    free = list(random.permutation(np.arange(1, 3 * live + BATCH)) * 512 + 0x7F00_0000_0000)
    used: list[int] = []
    first = [EventKind.ALLOCATION] * live
    for begin in range(0, events, BATCH):
        rest = BATCH - len(first[:BATCH])
        kind = np.array([*first[:BATCH], *(pattern * (rest // 5 + 1))[:rest]], np.uint8)
        first = first[BATCH:]
        address = np.zeros(BATCH, np.uint64)
        for position in np.flatnonzero((kind == EventKind.ALLOCATION) | (kind == EventKind.RELEASE)).tolist():
            if kind[position] == EventKind.ALLOCATION:
                used.append(free.pop())
                address[position] = used[-1]
            elif used:
                pick = int(random.integers(len(used)))
                used[pick], used[-1] = used[-1], used[pick]
                address[position] = used[-1]
                free.insert(0, used.pop())
        size = np.where(kind == EventKind.SPAN, -1, random.integers(0, 1 << 20, BATCH))
        yield EventBatch(
            kind=kind,
            time_unix_ns=np.arange(begin, begin + BATCH) * 1_000,
            name=random.choice(names, BATCH),
            module=random.choice(modules, BATCH),
            phase=np.full(BATCH, Phase.FORWARD),
            category=np.full(BATCH, Category.ACTIVATION),
            device=np.where(kind == EventKind.SPAN, -1, 0),
            size_bytes=size,
            allocated_bytes=np.where(kind == EventKind.SPAN, -1, random.integers(0, 1 << 30, BATCH) + begin),
            active_bytes=np.where(kind == EventKind.SPAN, -1, random.integers(0, 1 << 30, BATCH)),
            address=address,
        )


def main() -> None:
    """Print events per second."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    live = int(sys.argv[2]) if len(sys.argv) > 2 else 5_000
    tables = Tables()
    made = list(batches(min(events, 100 * BATCH), live, tables))
    fold = SummaryFold(RecordingInfo(devices=[Device("cuda", 0)]), tables)
    done, seconds = 0, 0.0
    while done < events:
        begin = time.perf_counter()
        for batch in made:
            fold.add(batch)
        seconds += time.perf_counter() - begin
        done += len(made) * BATCH
    begin = time.perf_counter()
    fold.result(RecordingEnd())
    result_ms = 1e3 * (time.perf_counter() - begin)
    print(f"{done:,} events, {live:,} storages live: {done / seconds / 1e6:.2f} million events/s")
    print(f"{seconds / done * 1e6:.3f} µs each; result() {result_ms:.2f} ms")


if __name__ == "__main__":
    main()
