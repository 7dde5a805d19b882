"""How fast a summary folds events, beside a plain loop in Python that only keeps the books of memory.

    python tools/bench/summary.py [--events 2000000] [--live 5000]

Target: ≥ 5 million events a second, as many as an archive must give, so that a summary does not wait for it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

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


def peer_loop(batch: EventBatch, live: dict[int, tuple[int, int]], totals: dict[int, int]) -> None:
    """The least that any summary does: what is live by address, and bytes by operator."""
    columns = (batch.kind, batch.name, batch.category, batch.size_bytes, batch.address)
    for kind, name, category, size, address in zip(*(c.tolist() for c in columns), strict=True):
        if kind == EventKind.ALLOCATION:
            live[address] = (size, category)
        elif kind == EventKind.RELEASE:
            live.pop(address, None)
        elif kind == EventKind.OPERATOR:
            totals[name] = totals.get(name, 0) + size


def events_per_second(add: Callable[[EventBatch], object], made: list[EventBatch], events: int) -> float:
    """The speed of a fold over the batches, repeated until there were as many events."""
    done, begin = 0, time.perf_counter()
    while done < events:
        for batch in made:
            add(batch)
            done += len(batch)
    return done / (time.perf_counter() - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--live", type=int, default=5_000, help="storages that are live at any time")
    options = parser.parse_args()
    tables = Tables()
    made = list(batches(min(options.events, 100 * BATCH), options.live, tables))
    fold = SummaryFold(RecordingInfo(devices=[Device("cuda", 0)]), tables)
    speed = events_per_second(fold.add, made, options.events) / 1e6
    live: dict[int, tuple[int, int]] = {}
    totals: dict[int, int] = {}
    peer = events_per_second(lambda batch: peer_loop(batch, live, totals), made, 1) / 1e6
    begin = time.perf_counter()
    fold.result(RecordingEnd())
    result_ms = 1e3 * (time.perf_counter() - begin)
    print(f"{options.events:,} events, {options.live:,} storages live")
    print(f"{'':30}{'memexport':>10}{'loop':>10}{'× loop':>8}{'target':>8}")
    print(f"{'fold, million events/s':30}{speed:10.2f}{peer:10.2f}{speed / peer:8.1f}{'≥ 5':>8}")
    print(f"{'result, ms':30}{result_ms:10.2f}")


if __name__ == "__main__":
    main()
