"""Bytes reach streams and URLs as they reach files: complete, or with an error that says where."""

from __future__ import annotations

import io
from pathlib import Path

import fsspec
import pytest

from memexport.errors import OutputError, UsageError
from memexport.exporters.destination import FileDestination, StreamDestination
from memexport.exporters.remote_destination import RemoteDestination


@pytest.fixture
def memory():
    """The filesystem behind memory:// URLs, empty."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def write(destination, *parts):
    """Write all parts and commit."""
    destination.open()
    for part in parts:
        destination.write(part)
    destination.commit()
    return destination


def test_all_destinations_count_what_was_written(tmp_path, memory):
    for destination in (
        FileDestination(tmp_path / "file"),
        StreamDestination(io.BytesIO()),
        RemoteDestination("memory://file"),
    ):
        assert write(destination, b"one", bytearray(b"two")).written_bytes == 6


def test_a_stream_gets_what_is_written_at_once_and_stays_open():
    stream = io.BytesIO()
    destination = StreamDestination(stream)
    destination.open()
    destination.write(b"one")
    assert stream.getvalue() == b"one"
    destination.discard()
    destination.commit()
    assert not stream.closed


def test_a_stream_that_fails_is_an_output_error_with_its_name():
    class Full(io.BytesIO):
        name = "<stdout>"

        def write(self, data):
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="<stdout>: byte 0: No space left"):
        write(StreamDestination(Full()), b"one")


def test_a_stream_that_nobody_reads_is_not_an_output_error():
    class Closed(io.BytesIO):
        def write(self, data):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        write(StreamDestination(Closed()), b"one")


def test_a_url_gets_the_file_when_it_is_complete(memory, temporary):
    destination = RemoteDestination("memory://folder/run.jsonl.gz")
    destination.open()
    destination.write(b"one")
    assert not memory.exists("/folder/run.jsonl.gz")
    destination.commit()
    assert memory.cat("/folder/run.jsonl.gz") == b"one"
    assert list(temporary.iterdir()) == []
    assert destination.path.name == "run.jsonl.gz"


def test_a_url_gets_nothing_when_it_is_discarded(memory, temporary):
    destination = RemoteDestination("memory://run.jsonl")
    destination.discard()
    destination.open()
    destination.write(b"one")
    destination.discard()
    destination.discard()
    assert not memory.exists("/run.jsonl")
    assert list(temporary.iterdir()) == []


def test_a_file_behind_a_url_is_replaced_only_when_told_to(memory):
    memory.pipe("/run.jsonl", b"precious")
    with pytest.raises(OutputError, match=r"memory://run\.jsonl: exists already"):
        RemoteDestination("memory://run.jsonl").open()
    write(RemoteDestination("memory://run.jsonl", overwrite=True), b"one")
    assert memory.cat("/run.jsonl") == b"one"


def test_an_upload_that_fails_is_an_output_error_and_leaves_nothing(memory, temporary, monkeypatch):
    def fail(self, local, path, **_options):
        self.pipe(path, b"half")
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(type(memory), "put_file", fail)
    with pytest.raises(OutputError, match=r"memory://run\.jsonl: reset by peer"):
        write(RemoteDestination("memory://run.jsonl"), b"one")
    assert not memory.exists("/run.jsonl")
    assert list(temporary.iterdir()) == []


def test_an_upload_that_fails_does_not_remove_what_was_there(memory, monkeypatch):
    def fail(*_arguments, **_options):
        raise PermissionError("read-only")

    memory.pipe("/run.jsonl", b"precious")
    monkeypatch.setattr(type(memory), "put_file", fail)
    with pytest.raises(OutputError, match="read-only"):
        write(RemoteDestination("memory://run.jsonl", overwrite=True), b"one")
    assert memory.cat("/run.jsonl") == b"precious"


def test_a_protocol_that_does_not_exist_is_an_output_error():
    with pytest.raises(OutputError, match="nonsense://x/y: Protocol not known"):
        RemoteDestination("nonsense://x/y").open()


def test_a_file_url_is_a_file(tmp_path):
    write(RemoteDestination(f"file://{tmp_path}/run.jsonl"), b"one")
    assert (tmp_path / "run.jsonl").read_bytes() == b"one"


def test_without_fsspec_a_url_is_wrong_usage(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(UsageError) as raised:
        RemoteDestination("memory://x").open()
    assert raised.value.hint == "pip install 'memexport[remote]'"


@pytest.mark.parametrize("destination", [RemoteDestination("memory://x"), FileDestination(Path("x"))])
def test_what_is_not_open_cannot_be_written(destination):
    with pytest.raises(OutputError, match="not open"):
        destination.write(b"one")


def test_without_room_for_a_temporary_file_the_url_is_named(monkeypatch, memory):
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(OutputError, match="memory://x: no temporary file for it: No space"):
        RemoteDestination("memory://x").open()
