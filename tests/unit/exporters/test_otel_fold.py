"""The fold of a recording into metrics: sums that agree, peaks that are not lost, series that stay."""

from __future__ import annotations

import random

import numpy as np
import pytest
from made_recordings import Made
from metric_streams import CATEGORIES, folded, random_recording, series, tallies

from memexport.analysis.summary import SummaryFold
from memexport.errors import UsageError
from memexport.exporters._otel_fold import FoldOptions, MetricsFold
from memexport.exporters._otel_metrics import MAX_SERIES
from memexport.model import Category, Device, EventBatch, EventKind, Phase, RecordingEnd

DEVICES = ("cuda:0", "cuda:1")


def summed(values, device):
    """The sum of a metric's series of one device."""
    return sum(value for attributes, value in values.items() if attributes[0] == device)


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_categories_and_modules_add_up_to_allocated_at_every_collection(batch_size):
    made = random_recording()
    fold, summary = MetricsFold(made.info, made.tables, FoldOptions()), SummaryFold(made.info, made.tables)
    for batch in made.batches(batch_size):
        fold.add(batch)
        summary.add(batch)
        found = series(fold.collect()[0])
        for (device,), allocated in found["memexport.memory.allocated"].items():
            usage = summary.usage("current")[device]
            assert allocated == usage["total"]
            assert summed(found["memexport.memory.usage"], device) == allocated
            assert summed(found["memexport.module.memory.usage"], device) == allocated
            for category in Category:
                ours = found["memexport.memory.usage"].get((device, category.name.lower()), 0)
                assert ours == usage.get(category.name.lower(), 0)


def test_a_peak_lasts_from_one_collection_to_the_next():
    made = Made()
    for number, allocated in enumerate([100, 500, 300, 200, 250, 0]):
        made.add(EventKind.SAMPLE, number, device=0, rank=0, allocated_bytes=allocated)
    fold = MetricsFold(made.info, made.tables, FoldOptions())
    peaks = []
    for batch in made.batches(3):
        fold.add(batch)
        peaks.append(series(fold.collect()[0])["memexport.memory.allocated.peak"]["cuda:0",])
    # What was allocated at the collection before still was when the next interval began.
    assert peaks == [500, 300]
    assert series(fold.collect()[0])["memexport.memory.allocated.peak"] == {("cuda:0",): 0}


def test_a_series_that_was_there_once_stays_and_goes_to_zero():
    made = random_recording(events=200)
    fold, seen = MetricsFold(made.info, made.tables, FoldOptions()), {}
    for batch in made.batches(20):
        fold.add(batch)
        found = series(fold.collect()[0])
        for name, before in seen.items():
            assert before == list(found[name])[: len(before)]
        seen = {name: list(values) for name, values in found.items()}
    freed = Made(devices=made.info.devices)
    freed.tables = made.tables
    live = {row["address"]: row for row in made.rows if row["kind"] == EventKind.ALLOCATION}
    for row in made.rows:
        if row["kind"] == EventKind.RELEASE:
            del live[row["address"]]
    freed.rows = [{**row, "kind": EventKind.RELEASE, "allocated_bytes": 0} for row in live.values()]
    for batch in freed.batches():
        fold.add(batch)
    last = series(fold.collect()[0])
    assert list(last["memexport.module.memory.usage"]) == seen["memexport.module.memory.usage"]
    assert set(last["memexport.module.memory.usage"].values()) == {0}


def many_modules(count, devices=1):
    """A recording of so many modules, with eight categories each."""
    made = Made(devices=[Device("cuda", index) for index in range(devices)])
    random_, allocated = random.Random(0), dict.fromkeys(range(devices), 0)
    categories = [c for c in Category if c not in (Category.UNKNOWN, Category.UNATTRIBUTED)][:8]
    for number in range(count * 8):
        device, size = random_.randrange(devices), random_.randrange(1, 10**6)
        allocated[device] += size
        made.add(
            EventKind.ALLOCATION, number, name="aten.mm", module=f"block.{number % count}.fc",
            size_bytes=size, category=categories[number // count], device=device, rank=0, address=number + 1,
            allocated_bytes=allocated[device],
        )  # fmt: skip
    return made, allocated


def test_ten_thousand_modules_of_eight_categories_make_less_than_a_thousand_series():
    made, allocated = many_modules(10_000)
    fold = folded(made)
    for _ in range(2):
        found = series(fold.collect()[0])
        for values in found.values():
            assert len(values) < MAX_SERIES
        modules = found["memexport.module.memory.usage"]
        assert sum(modules.values()) == allocated[0]
        assert len({module for _, module, _ in modules}) == 51
        assert modules["cuda:0", "other", "parameter"] > 0


def test_the_largest_modules_are_let_in():
    made, _ = many_modules(500)
    modules = series(folded(made, top_modules=3).collect()[0])["memexport.module.memory.usage"]
    sizes = {}
    for row in made.rows:
        name = ".".join(made.tables.strings.get(row["module"]).split(".")[:2])
        sizes[name] = sizes.get(name, 0) + row["size_bytes"]
    largest = sorted(sizes, key=sizes.get)[-3:]
    assert {module for _, module, _ in modules} == {"other", *largest}


@pytest.mark.parametrize("devices", [2, 20, 64])
def test_many_devices_share_the_room_and_the_totals_still_match(devices):
    made, allocated = many_modules(2_000, devices)
    found = series(folded(made).collect()[0])
    for values in found.values():
        assert len(values) < MAX_SERIES
    for name in ("memexport.memory.allocated", "memexport.memory.usage", "memexport.module.memory.usage"):
        assert sum(found[name].values()) == sum(allocated.values())


def test_a_module_is_cut_to_its_depth():
    made, _ = many_modules(3)
    modules = series(folded(made, module_depth=1).collect()[0])["memexport.module.memory.usage"]
    assert {module for _, module, _ in modules} == {"block"}
    modules = series(folded(made, module_depth=9).collect()[0])["memexport.module.memory.usage"]
    assert {module for _, module, _ in modules} == {"block.0.fc", "block.1.fc", "block.2.fc"}


def test_what_no_module_allocated_is_of_no_module_and_what_nothing_explains_unattributed():
    made = Made()
    made.add(EventKind.ALLOCATION, 0, size_bytes=70, category=Category.INPUT, device=0, rank=0, address=1,
             allocated_bytes=100)  # fmt: skip
    found = series(folded(made).collect()[0])["memexport.module.memory.usage"]
    assert found == {("cuda:0", "none", "input"): 70, ("cuda:0", "none", "unattributed"): 30}


def test_more_live_than_counted_is_less_than_nothing_unattributed():
    made = Made()
    made.add(EventKind.ALLOCATION, 0, size_bytes=70, category=Category.INPUT, device=0, rank=0, address=1,
             allocated_bytes=60)  # fmt: skip
    found = series(folded(made).collect()[0])
    assert found["memexport.memory.usage"] == {("cuda:0", "input"): 70, ("cuda:0", "unattributed"): -10}
    assert found["memexport.memory.allocated"] == {("cuda:0",): 60}


def test_counters_that_are_not_known_have_no_series():
    made = Made()
    made.add(EventKind.ALLOCATION, 0, size_bytes=70, category=Category.INPUT, device=0, rank=0, address=1)
    found = series(folded(made).collect()[0])
    assert not [name for name in found if "allocated" in name or "active" in name or "reserved" in name]
    assert found["memexport.memory.usage"] == {("cuda:0", "input"): 70}


def test_sizes_are_counted_by_phase_and_what_lived_before_is_not():
    made = Made()
    allocation = {"size_bytes": 512, "device": 0, "rank": 0}
    made.add(EventKind.ALLOCATION, 0, address=1, **allocation)
    made.add(EventKind.ALLOCATION, 1, name="aten.empty", address=2, **allocation)
    made.marker("start", 2, rank=0)
    for number in range(3):
        made.add(EventKind.ALLOCATION, 3 + number, name="aten.mm", phase=Phase.FORWARD, address=10 + number,
                 **allocation)  # fmt: skip
    made.add(EventKind.ALLOCATION, 9, name="aten.mm", address=20, **{**allocation, "size_bytes": 64})
    assert tallies(folded(made).collect()[0]) == {
        ("memexport.operator.allocation.size", "cuda:0", "unknown"): {64: 1},
        ("memexport.operator.allocation.size", "cuda:0", "forward"): {512: 3},
    }


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_each_step_has_its_duration_and_its_peak_on_the_devices_that_worked(batch_size):
    made = Made(devices=[Device("cuda", 0), Device("cpu")])
    for step, levels in enumerate([(10, 40, 20), (30, 25, 5), (6, 7, 5)]):
        for number, level in enumerate(levels):
            made.operator(
                "aten.mm", step * 100 + number, 1, device=0, rank=0, allocated_bytes=level, step=step
            )
        made.span("step", step * 100, 2_500_000_000 + step, step=step, rank=0)
    fold, peaks, seconds = MetricsFold(made.info, made.tables, FoldOptions()), [], []
    for batch in made.batches(batch_size):
        fold.add(batch)
        for (name, device), values in tallies(fold.collect()[0]).items():
            assert device == "cuda:0"
            (peaks if name == "memexport.step.memory.peak" else seconds).extend(values)
    assert sorted(peaks) == [7, 30, 40]
    assert sorted(seconds) == [2.5, 2.500000001, 2.500000002]


def test_operators_and_failed_requests_are_counted():
    made = random_recording()
    made.operator("aten.mm", 400_000, 5, device=1, rank=0)
    made.marker("oom", 400_001, device=0, rank=0, size_bytes=1 << 40)
    found = series(folded(made).collect()[0])
    assert found["memexport.operators"] == {("cuda:0",): 0, ("cuda:1",): 1}
    assert found["memexport.ooms"] == {("cuda:0",): 1}


def test_what_is_known_at_the_end_is_of_the_only_accelerator():
    made = Made(devices=[Device("cpu"), Device("cuda", 0)])
    for device in (0, 1):
        made.add(EventKind.SAMPLE, 0, device=device, rank=0, allocated_bytes=1)
    fold = folded(made)
    assert "memexport.events.dropped" not in series(fold.collect()[0])
    fold.end(RecordingEnd(dropped_events=3, alloc_retries=2, ooms=1))
    found = series(fold.collect()[0])
    assert found["memexport.allocation.retries"] == {("cuda:0",): 2}
    assert found["memexport.ooms"] == {("cuda:0",): 1}
    assert found["memexport.events.dropped"] == {(): 3}


def test_of_several_accelerators_nobody_says_which_had_to_retry():
    made = random_recording()
    fold = folded(made)
    fold.end(RecordingEnd(alloc_retries=2))
    assert series(fold.collect()[0])["memexport.allocation.retries"] == {(): 2}


def test_what_was_said_of_one_accelerator_stays_when_there_are_two():
    made = Made(devices=[Device("cuda", 0), Device("cuda", 1)])
    for device in (0, 1):
        made.add(EventKind.SAMPLE, device, device=device, rank=0, allocated_bytes=1)
    fold = MetricsFold(made.info, made.tables, FoldOptions())
    for batch, retries in zip(made.batches(1), (2, 5), strict=True):
        fold.add(batch)
        fold.end(RecordingEnd(alloc_retries=retries))
    assert series(fold.collect()[0])["memexport.allocation.retries"] == {("cuda:0",): 2, (): 3}


def test_every_rank_is_a_process_of_its_own():
    made = random_recording(ranks=(0, 1, 5))
    snapshots = folded(made).collect()
    assert list(snapshots) == [0, 1, 5]
    for rank, snapshot in snapshots.items():
        alone = random_recording(ranks=(0, 1, 5))
        alone.rows = [row for row in alone.rows if row["rank"] == rank]
        assert series(snapshot) == series(folded(alone).collect()[rank])


def test_a_gpu_has_a_limit_where_it_is_known_which_one_it_is():
    known = Device("cuda", 0, name="NVIDIA H200", uuid="1234", capacity_bytes=1 << 37)
    made = Made(devices=[known, Device("cuda", 1, capacity_bytes=5)])
    for device in (0, 1):
        made.add(EventKind.SAMPLE, 0, device=device, rank=0, allocated_bytes=1)
    snapshot = folded(made).collect()[0]
    limits = next(n for n in snapshot.numbers if n.metric.name == "hw.gpu.memory.limit")
    assert limits.attributes == ((("hw.id", "1234"), ("hw.name", "NVIDIA H200"), ("hw.vendor", "NVIDIA")),)
    assert limits.values.tolist() == [1 << 37]


def test_the_marker_peak_changes_nothing():
    made = random_recording()
    before = series(folded(made).collect()[0])
    made.marker("peak", 10**6, device=0, rank=0, allocated_bytes=1 << 50)
    assert series(folded(made).collect()[0]) == before


def test_an_empty_batch_and_an_empty_recording_are_fine():
    made = Made()
    fold = folded(made, [EventBatch.concat([])])
    assert fold.collect() == {}


@pytest.mark.parametrize("options", [{"module_depth": 0}, {"top_modules": 51}, {"top_modules": -1}])
def test_options_out_of_their_range_are_refused(options):
    with pytest.raises(UsageError, match=next(iter(options))):
        FoldOptions(**options)


def test_a_snapshot_is_not_changed_by_what_comes_after_it():
    made = random_recording()
    batches = made.batches(100)
    fold = folded(made, batches[:1])
    snapshot = fold.collect()[0]
    before = (series(snapshot), tallies(snapshot))
    for batch in batches[1:]:
        fold.add(batch)
    fold.collect()
    assert (series(snapshot), tallies(snapshot)) == before


def test_all_made_categories_are_seen():
    found = series(folded(random_recording()).collect()[0])["memexport.memory.usage"]
    assert {category for _, category in found} == {"unattributed", *(c.name.lower() for c in CATEGORIES)}
    assert np.all([size >= 0 for size in found.values()])
