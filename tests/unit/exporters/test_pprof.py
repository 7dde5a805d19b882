"""pprof profiles: decoded by an independent schema, they add up to the peak."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from pathlib import Path

import pytest
from made_recordings import START, Made
from pprof_profiles import Sample, decoded, samples

from memexport import pipeline
from memexport.exporters.pprof import PprofExporter
from memexport.model import Category, Device, EventKind, Phase

DATA = Path(__file__).parents[2] / "data"
SOURCES = {
    "archive": DATA / "archives" / "1.0.memx",
    "snapshot": DATA / "snapshots" / "drisspg_mini_snapshot.pickle",
    "kineto": DATA / "kineto" / "torch-2.13-cpu.json.gz",
    "memory_tracker": DATA / "legacy_conv.pickle",
}


def allocate(made: Made, size_bytes: int, allocated_bytes: int, **columns: object) -> None:
    """An ALLOCATION at an address of its own."""
    given = {"device": 0, "category": Category.ACTIVATION, "phase": Phase.FORWARD, **columns}
    at = 1_000 * len(made.rows)
    address = 4096 * (len(made.rows) + 1)
    made.add(
        EventKind.ALLOCATION,
        at,
        size_bytes=size_bytes,
        allocated_bytes=allocated_bytes,
        address=address,
        **given,
    )


@pytest.fixture
def made() -> Made:
    """Two tensors of one operator, a parameter, and ten bytes that nothing explains."""
    made = Made(command_line=("folder/train.py",), rank=3)
    operator = {"name": "aten.addmm.default", "module": "net.layers.1.fc"}
    allocate(made, 100, 110, category=Category.PARAMETER, phase=Phase.UNKNOWN, module="net.layers.1.fc")
    allocate(made, 40, 150, **operator)
    allocate(made, 60, 210, **operator)
    made.add(
        EventKind.RELEASE,
        9_000,
        device=0,
        size_bytes=60,
        allocated_bytes=150,
        address=made.rows[-1]["address"],
    )
    return made


def written(made: Made, path: Path) -> list[Sample]:
    return samples(decoded(made.write(PprofExporter, path)))


def test_what_lived_at_the_peak_is_there_by_stack_with_its_labels(made: Made, tmp_path: Path) -> None:
    """The module's path and the operator, and what is known about them."""
    where = {"device": "cuda:0", "rank": "3"}
    module = {"module": "net.layers.1.fc"}
    assert sorted(written(made, tmp_path / "p.pb.gz")) == [
        Sample(("(unattributed)",), 0, 0, 0, 10, {"category": "unattributed", **where}),
        Sample(
            ("net", "net.layers.1", "net.layers.1.fc"),
            *(1, 100, 1, 100),
            {"category": "parameter", **where, **module},
        ),
        Sample(
            ("net", "net.layers.1", "net.layers.1.fc", "aten::addmm"),
            *(2, 100, 2, 100),
            {"category": "activation", **where, **module, "phase": "forward"},
        ),
    ]


def test_the_profile_says_what_its_numbers_are_and_when_the_peak_was(made: Made, tmp_path: Path) -> None:
    """As every viewer of heap profiles expects it."""
    profile = decoded(made.write(PprofExporter, tmp_path / "p.pb.gz"))
    text = profile.string_table
    kinds = [(text[kind.type], text[kind.unit]) for kind in profile.sample_type]
    assert kinds == [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ]
    assert text[profile.default_sample_type] == "inuse_space"
    assert (text[profile.period_type.type], text[profile.period_type.unit]) == ("space", "bytes")
    dropped = re.compile(text[profile.drop_frames])
    assert dropped.fullmatch("c10::cuda::CUDACachingAllocator::Native::malloc")
    assert not dropped.fullmatch("forward")
    assert profile.time_nanos == START + 2_000
    assert [text[comment] for comment in profile.comment] == ["cuda:0: peak of 210 bytes allocated"]
    (mapping,) = profile.mapping
    assert text[mapping.filename] == "train.py"
    assert mapping.has_functions and mapping.has_filenames and mapping.has_line_numbers


def test_python_stacks_stand_in_the_place_of_modules(tmp_path: Path) -> None:
    """With file and line, as pprof shows them; the operator is the leaf."""
    made = Made()
    frames = [made.tables.strings.intern(text) for text in ("/x/train.py:7:main", "/x/net.py:30:forward")]
    stack = made.tables.stacks.intern(frames)
    allocate(made, 8, 8, name="aten.mm.default", module="net", stack=stack)
    (sample,) = written(made, tmp_path / "p.pb.gz")
    assert sample.stack == ("main /x/train.py:7", "forward /x/net.py:30", "aten::mm")
    assert sample.labels["module"] == "net"


def test_each_device_is_there_at_its_own_peak(tmp_path: Path) -> None:
    """Samples of one device add up to its peak, which another had at another time."""
    made = Made(devices=[Device("cuda", 0), Device("cuda", 1)])
    allocate(made, 100, 100)
    made.add(EventKind.RELEASE, 1_500, device=0, size_bytes=100, allocated_bytes=0, address=4096)
    allocate(made, 70, 70, device=1)
    found = {sample.labels["device"]: sample.bytes for sample in written(made, tmp_path / "p.pb.gz")}
    assert found == {"cuda:0": 100, "cuda:1": 70}


def test_what_was_released_counts_as_allocated(made: Made, tmp_path: Path) -> None:
    """Before the peak, after it, and again and again."""
    operator = {"name": "aten.mm.default", "module": "late"}
    for _ in range(2):
        allocate(made, 5, 155, **operator)
        address = made.rows[-1]["address"]
        made.add(EventKind.RELEASE, 10_000, device=0, size_bytes=5, allocated_bytes=150, address=address)
    (late,) = [s for s in written(made, tmp_path / "p.pb.gz") if s.labels.get("module") == "late"]
    assert late[1:5] == (2, 10, 0, 0)


def test_what_is_said_anew_of_a_tensor_is_no_second_allocation(tmp_path: Path) -> None:
    """It counts as what was said last; a tensor of another size at its address is another one."""
    made = Made()
    for size, category in ((8, Category.OTHER), (8, Category.GRADIENT), (16, Category.INPUT)):
        made.add(
            EventKind.ALLOCATION,
            0,
            device=0,
            size_bytes=size,
            allocated_bytes=8,
            address=64,
            category=category,
        )
    found = written(made, tmp_path / "p.pb.gz")
    assert {s.labels["category"]: (s.allocated_count, s.allocated_bytes) for s in found} == {
        "other": (0, 0),
        "gradient": (1, 8),
        "input": (1, 16),
    }


def test_functions_of_one_name_have_addresses_of_their_own(tmp_path: Path) -> None:
    """The same ones in every profile, so that two can be compared; modules and operators have none."""
    made = Made()
    for file in ("/x/net.py:30:forward", "/x/head.py:7:forward"):
        stack = made.tables.stacks.intern([made.tables.strings.intern(file)])
        allocate(made, 8, 8 * len(made.rows) + 8, name="aten.mm.default", stack=stack)
    profile = decoded(made.write(PprofExporter, tmp_path / "p.pb.gz"))
    addresses = [location.address for location in profile.location if location.address]
    assert len(profile.location) == 3
    assert addresses == [zlib.crc32(b"forward\0/x/net.py\x0030"), zlib.crc32(b"forward\0/x/head.py\x007")]


def test_a_peak_of_which_only_the_counter_is_known_is_unattributed(tmp_path: Path) -> None:
    """It is shown, not left out."""
    made = Made()
    made.operator("aten.mm.default", 0, 10, device=0, allocated_bytes=512)
    (sample,) = written(made, tmp_path / "p.pb.gz")
    assert (sample.stack, sample.bytes) == (("(unattributed)",), 512)


def test_a_name_that_is_no_unicode_is_written(tmp_path: Path) -> None:
    """What has no encoding, as its escape."""
    made = Made()
    allocate(made, 1, 1, module="a\udcff.b")
    (sample,) = written(made, tmp_path / "p.pb.gz")
    assert sample.stack == ("a\\udcff", "a\\udcff.b")


@pytest.mark.parametrize("source", SOURCES)
def test_what_was_allocated_is_all_that_the_recording_allocates(source: str, tmp_path: Path) -> None:
    """Counted by hand, event by event, for real recordings of every format."""
    with pipeline.open(SOURCES[source]) as recording:
        pipeline.convert(recording, tmp_path / "p.pb.gz")
        allocated: Counter[str] = Counter()
        live: dict[tuple[int, int, int], int] = {}
        for batch in recording.batches():
            columns = (batch.kind, batch.rank, batch.device, batch.address, batch.size_bytes)
            for kind, *place, size in zip(*(column.tolist() for column in columns), strict=True):
                if kind == EventKind.ALLOCATION and live.get(tuple(place)) != size:
                    allocated[str(recording.info.devices[place[1]])] += max(size, 0)
                    live[tuple(place)] = size
                elif kind == EventKind.RELEASE:
                    live.pop(tuple(place), None)
    found = Counter()
    for sample in samples(decoded(tmp_path / "p.pb.gz")):
        found[sample.labels["device"]] += sample.allocated_bytes
    assert +found == +allocated


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_in_use_adds_up_to_the_peak_of_every_device(source: str, tmp_path: Path) -> None:
    """For real recordings of every format."""
    with pipeline.open(SOURCES[source]) as recording:
        pipeline.convert(recording, tmp_path / "p.pb.gz")
        peaks = {
            name: device.allocated.peak
            for name, device in recording.summary().devices.items()
            if device.allocated is not None
        }
    found = dict.fromkeys(peaks, 0)
    for sample in samples(decoded(tmp_path / "p.pb.gz")):
        device = sample.labels["device"]
        # The archive says of which of several ranks it is; the summary then names it too.
        found[device if device in found else f"rank {sample.labels['rank']} {device}"] += sample.bytes
    assert found == peaks
