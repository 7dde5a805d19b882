"""Recordings for the tests of metrics, made of random allocations, and ways to look at what was collected."""

from __future__ import annotations

import itertools
import random

from made_recordings import Made

from memexport.exporters._otel_fold import FoldOptions, MetricsFold
from memexport.model import Category, Device, EventKind, Phase

CATEGORIES = (Category.PARAMETER, Category.ACTIVATION, Category.GRADIENT, Category.TEMPORARY)


def random_recording(events=300, devices=2, ranks=(0,), seed=0, **info):
    """Allocations and releases on several devices, with steps in between; counters after every event."""
    random_ = random.Random(seed)
    made = Made(devices=[Device("cuda", index) for index in range(devices)], **info)
    live, level, addresses = {}, {}, itertools.count(1)
    for number in range(events):
        place = (random_.choice(ranks), random_.randrange(devices))
        blocks, at = live.setdefault(place, {}), number * 1_000
        where = {
            "rank": place[0],
            "device": place[1],
            "step": number // 50,
            "phase": random_.choice(list(Phase)),
        }
        if blocks and random_.random() < 0.45:
            address = random_.choice(list(blocks))
            size = blocks.pop(address)
            level[place] -= size
            kind, category = EventKind.RELEASE, Category.UNKNOWN
        else:
            address, size = next(addresses) * 4096, random_.choice((0, 64, 512, 1000, 4096))
            blocks[address] = size
            # What the allocator rounds up, nothing explains.
            level[place] = level.get(place, 0) + size + 8
            kind, category = EventKind.ALLOCATION, random_.choice(CATEGORIES)
        made.add(
            kind, at, name="aten.mm.default", module=f"layers.{random_.randrange(9)}.fc", size_bytes=size,
            category=category, address=address, allocated_bytes=level[place], **where,
        )  # fmt: skip
        if number % 50 == 49:
            for rank in ranks:
                made.span("step", at - 49_000, 49_500, step=number // 50, rank=rank)
    return made


def folded(made, batches=None, **options):
    """The fold after all of the recording's batches."""
    fold = MetricsFold(made.info, made.tables, FoldOptions(**options))
    for batch in made.batches() if batches is None else batches:
        fold.add(batch)
    return fold


def series(snapshot):
    """What was collected of each metric: {name: {attribute values: value}}."""
    return {
        numbers.metric.name: {
            tuple(value for _, value in attributes): int(number)
            for attributes, number in zip(numbers.attributes, numbers.values, strict=True)
        }
        for numbers in snapshot.numbers
    }


def tallies(snapshot):
    """What was counted: {(name, *attribute values): {value: count}}."""
    return {
        (tallied.metric.name, *(value for _, value in tallied.attributes)): dict(
            zip(*(column.tolist() for column in tallied.tally.counted), strict=True)
        )
        for tallied in snapshot.tallied
    }
