"""The pipeline opens by content, hands every batch to every exporter, and gives up cleanly."""

from __future__ import annotations

import gc
import io
import shutil
from pathlib import Path

import fsspec
import pytest

import memexport
from memexport import pipeline
from memexport.errors import InputError, OutputError, UsageError
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources.copied import CopiedSource

LEGACY_CONV = Path(__file__).parents[1] / "data" / "legacy_conv.pickle"


class Source:
    """Two batches, and perhaps an error in place of the second."""

    def __init__(self, error=None):
        self.info = RecordingInfo()
        self.tables = Tables()
        self.error = error
        self.closed = 0
        self.fraction_read = None

    def batches(self):
        """Hand them out."""
        self.fraction_read = 0.5
        yield EventBatch(kind=[4, 4])
        if self.error:
            raise self.error
        self.fraction_read = 1.0
        yield EventBatch(kind=[4])

    def end(self):
        """One warning."""
        return RecordingEnd(warnings=("careful",))

    def close(self):
        """Count."""
        self.closed += 1


class Exporter:
    """Writes down what is called; raises where it is told to."""

    def __init__(self, fail_at=None):
        self.calls = []
        self.fail_at = fail_at

    def _called(self, name):
        self.calls.append(name)
        if name == self.fail_at:
            raise OutputError("x", None, "disk full")

    def begin(self, info, tables):
        """First."""
        self._called("begin")

    def write(self, batch):
        """Then this."""
        self._called(f"write {len(batch)}")

    def end(self, end):
        """At last."""
        self._called(f"end {' '.join(end.warnings)}")

    def abort(self):
        """Or so."""
        self.calls.append("abort")


def test_every_exporter_gets_every_batch_in_order():
    exporters = [Exporter(), Exporter()]
    assert pipeline.run(pipeline.Recording(Path("x"), Source()), exporters) == 3
    for exporter in exporters:
        assert exporter.calls == ["begin", "write 2", "write 1", "end careful"]


@pytest.mark.parametrize("fail_at", ["begin", "write 2", "write 1", "end careful"])
def test_when_one_exporter_fails_all_are_aborted(fail_at):
    exporters = [Exporter(), Exporter(fail_at), Exporter()]
    with pytest.raises(OutputError):
        pipeline.run(pipeline.Recording(Path("x"), Source()), exporters)
    assert [exporter.calls[-1] for exporter in exporters] == ["abort"] * 3


@pytest.mark.parametrize(
    "error", [InputError("x", None, "cut"), KeyboardInterrupt()], ids=["input", "interrupt"]
)
def test_when_the_source_fails_all_exporters_are_aborted(error):
    exporter = Exporter()
    with pytest.raises(type(error)):
        pipeline.run(pipeline.Recording(Path("x"), Source(error)), [exporter])
    assert exporter.calls == ["begin", "write 2", "abort"]


def test_progress_counts_events_and_the_fraction_read():
    seen = []
    recording = pipeline.Recording(Path("x"), Source())
    pipeline.run(recording, [], lambda events, fraction: seen.append((events, fraction)))
    assert seen == [(2, 0.5), (3, 1.0)]


def test_a_recording_closes_its_source_when_the_block_ends():
    source = Source()
    with pipeline.Recording(Path("x"), source) as recording:
        assert len(EventBatch.concat(list(recording.batches()))) == 3
    assert source.closed == 1


def test_a_recording_sums_itself_up():
    summary = pipeline.Recording(Path("x"), Source()).summary()
    assert (summary.events, summary.warnings) == (3, ("careful",))


def test_a_recording_is_opened_by_content_and_not_by_name(tmp_path):
    path = shutil.copy(LEGACY_CONV, tmp_path / "misleading.memx")
    with pipeline.open(path) as recording:
        assert recording.info.format == "torch.memory_tracker"
        assert "misleading.memx" in repr(recording)


@pytest.mark.parametrize("content", [b"", b"text", bytes(1000), b"\x80\x05N."])
def test_a_file_of_no_known_format_is_refused(tmp_path, content):
    path = tmp_path / "file.memx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"file\.memx"):
        pipeline.open(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InputError):
            pipeline.open(path)


def test_convert_returns_what_the_source_says_at_its_end(tmp_path):
    end = pipeline.convert(LEGACY_CONV, tmp_path / "new.jsonl")
    assert end.alloc_retries == 3
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == 28


def test_convert_refuses_to_write_over_its_input(tmp_path):
    path = shutil.copy(LEGACY_CONV, tmp_path / "in.jsonl")
    with pytest.raises(UsageError, match="the input itself"):
        pipeline.convert(path, path, overwrite=True)
    assert Path(path).read_bytes() == LEGACY_CONV.read_bytes()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def memory():
    """The filesystem behind memory:// URLs, with a recording in it."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pipe("/old.pickle", LEGACY_CONV.read_bytes())
    yield filesystem
    filesystem.store.clear()


def test_a_folder_is_refused_with_what_to_name_instead(tmp_path):
    with pytest.raises(InputError, match="is a folder") as raised:
        pipeline.open(tmp_path)
    assert "files in it" in raised.value.hint


def test_a_stream_is_read_to_its_end_and_can_then_be_read_several_times(temporary):
    stream = io.BytesIO(LEGACY_CONV.read_bytes())
    stream.name = "<stdin>"
    with pipeline.open(stream) as recording:
        assert recording.name == "<stdin>"
        assert recording.summary() == recording.summary()
        assert recording.fraction_read == 1.0
        assert recording.path.parent == temporary
    assert list(temporary.iterdir()) == []


def test_the_copy_of_a_recording_that_is_forgotten_is_removed(temporary):
    pipeline.open(io.BytesIO(LEGACY_CONV.read_bytes()))
    gc.collect()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"nonsense", LEGACY_CONV.read_bytes()[:-100]])
def test_what_is_wrong_with_a_stream_is_said_of_the_stream(temporary, content):
    with pytest.raises(InputError, match=r"^stream: "):
        pipeline.open(io.BytesIO(content))
    assert list(temporary.iterdir()) == []


def test_what_is_wrong_in_the_middle_of_a_copy_is_said_of_the_original():
    copied = CopiedSource(Source(InputError("copy", "byte 3", "cut")), Path("copy"), "s3://bucket/run.memx")
    with pytest.raises(InputError, match=r"^s3://bucket/run\.memx: byte 3: cut"):
        pipeline.Recording(Path("copy"), copied).summary()


def test_a_stream_that_cannot_be_read_is_an_input_error(temporary):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    with pytest.raises(InputError, match="stream: cannot be copied: Input/output error"):
        pipeline.open(Broken())
    assert list(temporary.iterdir()) == []


def test_a_url_is_fetched_and_its_progress_shown(memory, temporary):
    seen = []
    with pipeline.open("memory://old.pickle", lambda *progress: seen.append(progress)) as recording:
        assert recording.summary().operators == 26
        assert "memory://old.pickle" in repr(recording)
    assert seen == [(len(LEGACY_CONV.read_bytes()), 1.0)]
    assert list(temporary.iterdir()) == []


def test_a_file_url_is_read(tmp_path):
    with pipeline.open(f"file://{LEGACY_CONV}") as recording:
        assert recording.summary().operators == 26


@pytest.mark.parametrize("url", ["memory://missing", "nonsense://x", "file:///missing/x"])
def test_a_url_that_leads_nowhere_is_an_input_error_that_names_it(memory, temporary, url):
    with pytest.raises(InputError, match=f"^{url}: "):
        pipeline.open(url)
    assert list(temporary.iterdir()) == []


def test_what_is_wrong_with_a_fetched_file_is_said_of_the_url(memory, temporary):
    memory.pipe("/bad.pickle", b"nonsense")
    with pytest.raises(InputError, match=r"^memory://bad\.pickle: not a recording"):
        pipeline.open("memory://bad.pickle")
    assert list(temporary.iterdir()) == []


def test_convert_goes_from_url_to_url(memory, temporary):
    pipeline.convert("memory://old.pickle", "memory://new/run.jsonl")
    assert len(memory.cat("/new/run.jsonl").splitlines()) == 28
    assert list(temporary.iterdir()) == []


def test_convert_goes_from_stream_to_stream():
    output = io.BytesIO()
    pipeline.convert(io.BytesIO(LEGACY_CONV.read_bytes()), output, to="jsonl")
    assert len(output.getvalue().splitlines()) == 28


def test_every_format_that_goes_to_a_stream_is_what_the_file_would_be(tmp_path):
    # The recording has no clock, which metrics need.
    for format_ in (f for f in pipeline.registry.EXPORTERS if f.suffixes and not f.name.startswith("otlp")):
        output, path = io.BytesIO(), tmp_path / f"x{format_.suffixes[0]}"
        pipeline.convert(LEGACY_CONV, output, to=format_.name)
        pipeline.convert(LEGACY_CONV, path)
        assert output.getvalue() == path.read_bytes()


def test_a_stream_needs_a_format(tmp_path):
    with pytest.raises(UsageError, match="which format"):
        pipeline.convert(LEGACY_CONV, io.BytesIO())


def test_an_open_recording_is_converted_and_stays_open(tmp_path):
    source = Source()
    recording = pipeline.Recording(LEGACY_CONV, source)
    pipeline.convert(recording, tmp_path / "new.jsonl")
    assert source.closed == 0
    with pytest.raises(UsageError, match="the input itself"):
        pipeline.convert(recording, LEGACY_CONV, to="jsonl", overwrite=True)


def test_a_part_of_a_recording_is_converted_like_a_whole_one(tmp_path):
    with memexport.open(LEGACY_CONV) as recording:
        part = recording.select(memexport.Selection(begin=10, until="#15"))
        end = memexport.convert(part, tmp_path / "new.jsonl")
        assert part.name == recording.name
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == 5 + 1
    assert "10 events were left out before the selected range" in end.warnings


def test_closing_a_part_closes_the_recording():
    source = Source()
    with pipeline.Recording(Path("x"), source).select(memexport.Selection()):
        pass
    assert source.closed == 1


def test_convert_refuses_to_write_over_the_url_that_it_reads(memory):
    with pytest.raises(UsageError, match="the input itself"):
        pipeline.convert("memory://old.pickle", "memory://old.pickle", to="jsonl", overwrite=True)
    assert memory.cat("/old.pickle") == LEGACY_CONV.read_bytes()
