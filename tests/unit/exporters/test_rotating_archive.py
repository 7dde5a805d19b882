"""An archive within a size: the first and the last of a recording, and a truthful middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from long_stream import BATCH_EVENTS, Stream

import memexport
from memexport.analysis.live import LiveSet
from memexport.archive_limit import LEAST_BYTES
from memexport.errors import OutputError, UsageError
from memexport.exporters.archive import ArchiveExporter
from memexport.exporters.destination import FileDestination
from memexport.exporters.rotating_archive import RotatingArchiveExporter
from memexport.model import COLUMNS, EventBatch, EventKind, RecordingEnd

LIMIT = LEAST_BYTES


def exporter_to(path: Path, limit: int = LIMIT) -> RotatingArchiveExporter:
    return RotatingArchiveExporter(FileDestination(path, overwrite=True, atomic=False), limit)


def written(path: Path, batches: int, after: Callable[[], None] = lambda: None) -> Stream:
    """A recording of so many batches in the file; `after` is called after each."""
    stream, exporter = Stream(), exporter_to(path)
    exporter.begin(stream.info, stream.tables)
    for batch in stream.batches(batches):
        exporter.write(batch)
        after()
    exporter.end(RecordingEnd(dropped_events=5))
    return stream


def read(path: Path) -> tuple[EventBatch, RecordingEnd, Any]:
    with memexport.open(path) as recording:
        batches = list(recording.batches())
        return EventBatch.concat(batches), recording.end(), recording.tables.strings


def taken(folder: Path) -> int:
    """Bytes of all files there, hidden ones too."""
    total = 0
    for file in folder.iterdir():
        total += file.stat().st_size
    return total


def test_a_recording_that_fits_is_the_same_as_without_a_limit(tmp_path: Path) -> None:
    written(tmp_path / "limited.memx", 10)
    stream, plain = Stream(), ArchiveExporter(FileDestination(tmp_path / "plain.memx"))
    plain.begin(stream.info, stream.tables)
    for batch in stream.batches(10):
        plain.write(batch)
    plain.end(RecordingEnd(dropped_events=5))
    limited, ours, names = read(tmp_path / "limited.memx")
    same, theirs, plain_names = read(tmp_path / "plain.memx")
    assert ours == theirs
    assert [names.get(n) for n in limited.name.tolist()] == [plain_names.get(n) for n in same.name.tolist()]
    for column in COLUMNS.keys() - {"name"}:
        assert np.array_equal(getattr(limited, column), getattr(same, column))


def test_the_first_and_the_last_are_kept_within_the_limit_at_every_moment(tmp_path: Path) -> None:
    sizes: list[int] = []
    stream = written(tmp_path / "run.memx", 160, lambda: sizes.append(taken(tmp_path)))
    events, _, _ = read(tmp_path / "run.memx")
    assert max(sizes) <= LIMIT
    assert [file.name for file in tmp_path.iterdir()] == ["run.memx"]
    whole = EventBatch.concat(list(Stream().batches(160)))
    head = int(np.argmax(events.kind == EventKind.MARKER))
    assert head > 5 * BATCH_EVENTS
    last = int(np.flatnonzero(events.time_unix_ns == events.time_unix_ns[-1])[-1]) + 1
    tail = 5 * BATCH_EVENTS
    for name in ("kind", "time_unix_ns", "size_bytes", "address", "allocated_bytes", "stack"):
        assert np.array_equal(getattr(events, name)[:head], getattr(whole, name)[:head])
        assert np.array_equal(getattr(events, name)[last - tail : last], getattr(whole, name)[-tail:])
    assert stream.events == 160 * BATCH_EVENTS


def test_the_file_lies_beside_its_successor_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        sizes.append(taken(tmp_path))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    written(tmp_path / "run.memx", 160)
    assert len(sizes) > 1
    assert LIMIT // 2 < max(sizes) <= LIMIT


def test_what_is_left_out_is_counted_to_the_event(tmp_path: Path) -> None:
    stream = written(tmp_path / "run.memx", 160)
    events, end, strings = read(tmp_path / "run.memx")
    name = strings.find("dropped")
    (begin,) = np.flatnonzero((events.name == name) & (events.kind == EventKind.MARKER))
    (samples,) = np.flatnonzero(events.kind == EventKind.SAMPLE)
    said_anew = samples - begin + 1
    assert end.dropped_events - 5 == stream.events - (len(events) - said_anew) > 0
    assert not end.warnings
    with memexport.open(tmp_path / "run.memx") as recording:
        assert f"{end.dropped_events} events were dropped" in " ".join(recording.summary().warnings)


def test_what_is_live_adds_up_to_the_counter_on_both_sides(tmp_path: Path) -> None:
    stream = written(tmp_path / "run.memx", 160)
    events, _, _ = read(tmp_path / "run.memx")
    live = LiveSet()
    on_device = np.flatnonzero(events.device == 0)
    begin, samples = 0, np.flatnonzero(events.kind == EventKind.SAMPLE).tolist()
    for stop in sorted({*range(500, len(events), 977), *(s + 1 for s in samples), len(events)}):
        live.add(events, on_device[(on_device >= begin) & (on_device < stop)])
        begin = stop
        known = events.allocated_bytes[:stop][events.allocated_bytes[:stop] >= 0][-1]
        if events.allocated_bytes[stop - 1] >= 0:
            assert int(live.live().columns["size_bytes"].sum()) == known
    assert int(live.live().columns["size_bytes"].sum()) == stream.live_bytes


def test_what_is_said_anew_has_its_category_and_stack(tmp_path: Path) -> None:
    written(tmp_path / "run.memx", 160)
    kept, _, _ = read(tmp_path / "run.memx")
    whole = EventBatch.concat(list(Stream().batches(160)))
    (sample,) = np.flatnonzero(kept.kind == EventKind.SAMPLE)
    position = int(np.searchsorted(whole.time_unix_ns, kept.time_unix_ns[sample], side="right"))
    for events, stop in ((kept, int(sample)), (whole, position)):
        live = LiveSet()
        live.add(events, np.flatnonzero(events.device[:stop] == 0))
        if events is kept:
            ours = live.live()
    theirs = live.live()
    assert np.array_equal(ours.address, theirs.address)
    for name in ("size_bytes", "category", "stack"):
        assert np.array_equal(ours.columns[name], theirs.columns[name])


def test_the_index_says_where_every_batch_lies(tmp_path: Path) -> None:
    from archive_index import batches_at_index

    written(tmp_path / "run.memx", 160)
    counts, entries = batches_at_index(tmp_path / "run.memx")
    assert counts == entries


def test_too_much_to_say_anew_leaves_out_the_rest_and_counts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memexport.exporters import rotating_archive

    monkeypatch.setattr(rotating_archive, "MAX_BATCH_EVENTS", 1)
    stream = written(tmp_path / "run.memx", 120)
    events, end, _ = read(tmp_path / "run.memx")
    assert len(events) + end.dropped_events - 5 == stream.events
    assert (tmp_path / "run.memx").stat().st_size <= LIMIT


def test_a_recording_that_was_never_ended_says_what_was_left_out(tmp_path: Path) -> None:
    stream, exporter = Stream(), exporter_to(tmp_path / "run.memx")
    exporter.begin(stream.info, stream.tables)
    for batch in stream.batches(120):
        exporter.write(batch)
    exporter.abort()
    _, end, _ = read(tmp_path / "run.memx")
    assert end.dropped_events == exporter.dropped_events > 0
    assert [w for w in end.warnings if "lost" in w] == []


def test_no_room_for_the_new_file_is_an_error_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, exporter = Stream(), exporter_to(tmp_path / "run.memx")
    exporter.begin(stream.info, stream.tables)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        for batch in stream.batches(160):
            exporter.write(batch)
    exporter.abort()
    events, _, _ = read(tmp_path / "run.memx")
    assert len(events) > 10 * BATCH_EVENTS
    assert [file.name for file in tmp_path.iterdir()] == ["run.memx"]


WRITER = """\
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from long_stream import Stream
from test_rotating_archive import exporter_to
stream, exporter, left = Stream(), exporter_to(Path(sys.argv[1])), int(sys.argv[3])
replace = Path.replace
def counted(self, target):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    result = replace(self, target)
    if left == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
Path.replace = counted
exporter.begin(stream.info, stream.tables)
print("ready", flush=True)
while True:
    for batch in stream.batches(40):
        exporter.write(batch)
"""


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(1, id="before-the-first-new-file-is-in-place"),
        pytest.param(3, id="before-the-third"),
        pytest.param(0, id="right-after-the-first"),
        pytest.param(2**62, id="some-time"),
    ],
)
def test_killed_while_it_rotates_it_is_one_file_that_opens(tmp_path: Path, turn: int) -> None:
    path = tmp_path / "run.memx"
    command = [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent), str(turn)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    if turn == 2**62:
        time.sleep(0.7)
        writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=100)
    assert writer.returncode == -signal.SIGKILL
    events, end, _ = read(path)
    assert len(events)
    assert [w for w in end.warnings if "events are lost" in w] == []
    assert taken(tmp_path) <= LIMIT


@pytest.mark.parametrize(
    ("limit", "outputs", "message"),
    [
        pytest.param("10KiB", ["run.memx"], "cannot be kept within", id="too-small"),
        pytest.param("much", ["run.memx"], "max_bytes", id="no-size"),
        pytest.param("10MiB", ["run.jsonl"], "only an archive", id="no-archive"),
        pytest.param("10MiB", [], "only an archive", id="no-output"),
        pytest.param("10MiB", ["s3://bucket/run.memx"], "only an archive", id="elsewhere"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(limit: str, outputs: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        memexport.Tracker(exporters=outputs, max_bytes=limit)
