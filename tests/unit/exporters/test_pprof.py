"""pprof profiles: decoded by an independent schema, they add up to the peak."""

from __future__ import annotations

import re
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
        Sample(("(unattributed)",), 10, 0, {"category": "unattributed", **where}),
        Sample(
            ("net", "net.layers.1", "net.layers.1.fc"), 100, 1, {"category": "parameter", **where, **module}
        ),
        Sample(
            ("net", "net.layers.1", "net.layers.1.fc", "aten::addmm"),
            100,
            2,
            {"category": "activation", **where, **module, "phase": "forward"},
        ),
    ]


def test_the_profile_says_what_its_numbers_are_and_when_the_peak_was(made: Made, tmp_path: Path) -> None:
    """As every viewer of heap profiles expects it."""
    profile = decoded(made.write(PprofExporter, tmp_path / "p.pb.gz"))
    text = profile.string_table
    kinds = [(text[kind.type], text[kind.unit]) for kind in profile.sample_type]
    assert kinds == [("inuse_space", "bytes"), ("inuse_objects", "count")]
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
