"""What TensorBoard itself reads of what is written for it."""

from __future__ import annotations

import builtins
import io
import sys

import numpy as np
import pytest
import torch
from made_recordings import START, Made
from metric_streams import random_recording
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import memexport
from memexport import pipeline
from memexport.analysis.summary import SummaryFold
from memexport.errors import OutputError, UsageError
from memexport.exporters.destination import FileDestination, StreamDestination
from memexport.exporters.remote_destination import RemoteDestination
from memexport.exporters.tensorboard import TensorBoardExporter
from memexport.model import Category, Device, EventKind, RecordingEnd


def exported(made, folder, batch_size=37):
    """What TensorBoard reads after the recording was exported: {tag: {step: scalar}}."""
    exporter = TensorBoardExporter(folder)
    exporter.begin(made.info, made.tables)
    for batch in made.batches(batch_size):
        exporter.write(batch)
    exporter.end(made.end)
    return scalars(folder)


def scalars(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: {s.step: s for s in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def expected_peaks(made):
    """Oracle: each step's peak by category on each device, by folding all that came until then."""
    batch = made.batches(100_000)[0]
    found = {}
    for step in np.unique(batch.step).tolist():
        for device in np.unique(batch.device[batch.device >= 0]).tolist():
            rows = np.flatnonzero(
                (batch.step == step) & (batch.device == device) & (batch.kind != EventKind.MARKER)
            )
            highest = int(rows[batch.allocated_bytes[rows].argmax()])
            fold = SummaryFold(made.info, made.tables)
            fold.add(batch.select(slice(0, highest + 1)))
            name = str(made.info.devices[device])
            found[step, name] = (fold.usage("current")[name], int(batch.time_unix_ns[highest]))
    return found


@pytest.mark.parametrize("batch_size", [37, 10_000])
def test_each_steps_peak_is_what_an_oracle_says(tmp_path, batch_size):
    made = random_recording(devices=2)
    found = exported(made, tmp_path / "run", batch_size)
    expected = expected_peaks(made)
    assert len(expected) == 12
    for (step, device), (usage, time_ns) in expected.items():
        for category, size in usage.items():
            scalar = found[f"memexport/peak_bytes/{device}/{category}"][step]
            assert scalar.value == np.float32(size)
            assert scalar.wall_time == pytest.approx(time_ns / 1e9, abs=1e-6)
    tags = {f"memexport/peak_bytes/{device}/{name}" for (_, device), (u, _) in expected.items() for name in u}
    assert set(found) == tags


def test_a_category_that_is_gone_is_zero(tmp_path):
    made = Made(devices=[Device("cpu")])
    for step, category in enumerate((Category.ACTIVATION, Category.GRADIENT)):
        where = {"step": step, "device": 0, "address": 64, "size_bytes": 100}
        made.add(EventKind.ALLOCATION, step * 10, category=category, allocated_bytes=100, **where)
        made.add(EventKind.RELEASE, step * 10 + 5, allocated_bytes=0, **where)
    found = exported(made, tmp_path)
    values = [scalar.value for scalar in found["memexport/peak_bytes/cpu/activation"].values()]
    assert values == [100, 0]


def test_what_was_reserved_and_what_failed_is_there_where_it_is_known(tmp_path):
    made = Made(devices=[Device("cuda", 0)])
    for step, reserved in enumerate((300, 700, 500)):
        for moment in (reserved, reserved - 100):
            made.add(
                EventKind.SAMPLE, step * 10 + (moment == reserved), step=step, device=0,
                allocated_bytes=10 * (step + 1), reserved_bytes=moment,
            )  # fmt: skip
    made.end = RecordingEnd(alloc_retries=3, ooms=1)
    found = exported(made, tmp_path)
    reserved = found["memexport/reserved_bytes/cuda:0"]
    assert [scalar.value for scalar in reserved.values()] == [300, 700, 500]
    assert reserved[1].wall_time == pytest.approx((START + 11) / 1e9, abs=1e-6)
    assert {step: s.value for step, s in found["memexport/retries"].items()} == {2: 3}
    assert {step: s.value for step, s in found["memexport/ooms"].items()} == {2: 1}


def test_a_recording_without_steps_has_its_peak(tmp_path):
    made = Made(devices=[Device("cpu")])
    for at, allocated in enumerate((5, 90, 40)):
        made.add(EventKind.SAMPLE, at, device=0, allocated_bytes=allocated)
    total = exported(made, tmp_path)["memexport/peak_bytes/cpu/total"]
    assert {step: scalar.value for step, scalar in total.items()} == {0: 90}


def test_the_ranks_of_a_run_have_tags_of_their_own(tmp_path):
    found = exported(random_recording(devices=1, ranks=(0, 1)), tmp_path)
    assert {tag.split("/")[2] for tag in found} == {"rank 0 cuda:0", "rank 1 cuda:0"}


def test_a_live_tracker_writes_the_peak_of_each_step(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 1))
    peaks = []
    with memexport.Tracker(model, exporters=[TensorBoardExporter(tmp_path / "runs" / "one")]) as tracker:
        for rows in (4, 64, 16):
            model(torch.randn(rows, 32)).sum().backward()
            tracker.step()
            peaks.append(tracker.take_peak()["cpu"])
    total = scalars(tmp_path / "runs" / "one")["memexport/peak_bytes/cpu/total"]
    assert [total[step].value for step in range(3)] == [np.float32(peak) for peak in peaks]


def test_it_makes_a_file_of_its_own_in_the_folder_and_does_not_replace_it(tmp_path):
    made = random_recording(events=50)
    exported(made, tmp_path / "run")
    (name,) = [path.name for path in (tmp_path / "run").iterdir()]
    assert name.startswith("events.out.tfevents.")
    before = (tmp_path / "run" / name).read_bytes()
    exporter = TensorBoardExporter(FileDestination(tmp_path / "run"))
    with pytest.raises(OutputError, match="exists already"):
        exporter.begin(made.info, made.tables)
    exporter.abort()
    assert (tmp_path / "run" / name).read_bytes() == before


def test_abort_leaves_nothing_behind(tmp_path):
    made = random_recording(events=50)
    exporter = TensorBoardExporter(FileDestination(tmp_path / "run"))
    exporter.abort()
    exporter.begin(made.info, made.tables)
    exporter.write(made.batches()[0])
    exporter.abort()
    exporter.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_hostile_host_name_stays_in_the_folder(tmp_path):
    made = random_recording(events=50, host="../../x\x1b[2J")
    exported(made, tmp_path / "run")
    assert len(list((tmp_path / "run").iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("x")
    made = random_recording(events=50)
    with pytest.raises(OutputError, match="file"):
        TensorBoardExporter(tmp_path / "file" / "run").begin(made.info, made.tables)


def test_a_stream_is_no_folder():
    with pytest.raises(UsageError, match="folder"):
        TensorBoardExporter(StreamDestination(io.BytesIO()))


def test_a_folder_may_be_behind_a_url():
    fsspec = pytest.importorskip("fsspec")
    made = random_recording(events=50)
    exporter = TensorBoardExporter(RemoteDestination("memory://runs/one"))
    exporter.begin(made.info, made.tables)
    exporter.end(RecordingEnd())
    files = fsspec.filesystem("memory").ls("/runs/one", detail=False)
    assert len(files) == 1
    assert "tfevents" in files[0]


def test_without_tensorboard_it_says_what_to_install(monkeypatch, tmp_path):
    real = builtins.__import__

    def without(name, *arguments):
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *arguments)

    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match="not installed") as raised:
        TensorBoardExporter(tmp_path)
    assert "memexport[tensorboard]" in raised.value.hint


def test_convert_writes_it_by_name(tmp_path):
    made = random_recording(events=100)
    source = made.write(pipeline.registry.exporter_for("x.memx").load(), tmp_path / "run.memx")
    pipeline.convert(source, tmp_path / "log", to="tensorboard")
    assert scalars(tmp_path / "log")
