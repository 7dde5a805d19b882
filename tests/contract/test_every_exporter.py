"""What holds for every format that memexport writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import END, export

from memexport import registry
from memexport.errors import OutputError
from memexport.exporters import FileDestination
from memexport.model import EventBatch

# One without suffixes is not written into a file: OTLP goes to a collector.
FILES = [format_ for format_ in registry.EXPORTERS if format_.suffixes]
pytestmark = pytest.mark.parametrize("format_", FILES, ids=lambda format_: format_.name)


@pytest.fixture
def path(format_, tmp_path):
    """Where to write."""
    return tmp_path / f"out{format_.suffixes[0]}"


@pytest.fixture
def exporter_to(format_, path):
    """An exporter of the format."""
    return lambda **options: format_.load()(FileDestination(path, **options))


def test_it_writes_one_file_and_leaves_nothing_beside_it(exporter_to, path, recorded):
    export(recorded, exporter_to())
    assert path.stat().st_size > 0
    assert list(path.parent.iterdir()) == [path]


def test_the_same_recording_gives_the_same_bytes(exporter_to, path, recorded):
    batches = list(recorded.batches())
    recorded.batches = lambda: iter(batches)
    export(recorded, exporter_to())
    first = path.read_bytes()
    export(recorded, exporter_to(overwrite=True))
    assert path.read_bytes() == first


def test_an_empty_recording_makes_a_file(exporter_to, path, empty):
    export(empty, exporter_to())
    assert path.exists()


def test_an_empty_batch_is_written(exporter_to, path, recorded):
    batches = [EventBatch.concat([]), *recorded.batches(), EventBatch.concat([])]
    recorded.batches = lambda: iter(batches)
    export(recorded, exporter_to())
    assert path.exists()


def test_it_does_not_replace_a_file_unless_told_to(exporter_to, path, recorded):
    path.write_bytes(b"precious")
    exporter = exporter_to()
    with pytest.raises(OutputError, match="exists"):
        exporter.begin(recorded.info, recorded.tables)
    exporter.abort()
    assert path.read_bytes() == b"precious"
    export(recorded, exporter_to(overwrite=True))
    assert path.read_bytes() != b"precious"


@pytest.mark.parametrize("batches_written", [0, 1, 2])
def test_abort_leaves_what_was_there_before(exporter_to, path, recorded, batches_written):
    path.write_bytes(b"precious")
    exporter = exporter_to(overwrite=True)
    exporter.begin(recorded.info, recorded.tables)
    for batch in list(recorded.batches())[:batches_written]:
        exporter.write(batch)
    exporter.abort()
    assert path.read_bytes() == b"precious"
    assert list(path.parent.iterdir()) == [path]


def test_abort_is_allowed_at_any_time_and_more_than_once(exporter_to, path, recorded):
    exporter_to().abort()
    assert not path.exists()
    exporter = exporter_to()
    export(recorded, exporter)
    written = path.read_bytes()
    exporter.abort()
    exporter.abort()
    assert path.read_bytes() == written


def test_a_folder_that_does_not_exist_is_an_output_error(format_, path, recorded):
    exporter = format_.load()(FileDestination(path.parent / "missing" / path.name))
    with pytest.raises(OutputError, match="missing"):
        exporter.begin(recorded.info, recorded.tables)
    exporter.abort()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_is_an_output_error(format_, recorded):
    exporter = format_.load()(FileDestination(Path("/dev/full"), overwrite=True, atomic=False))
    with pytest.raises(OutputError, match="/dev/full"):
        export(recorded, exporter)
    exporter.abort()


def test_a_live_recording_is_in_its_place_from_the_beginning(exporter_to, path, recorded):
    exporter = exporter_to(atomic=False)
    exporter.begin(recorded.info, recorded.tables)
    assert path.exists()
    for batch in recorded.batches():
        exporter.write(batch)
    exporter.end(END)
    assert list(path.parent.iterdir()) == [path]
