"""The pipeline opens by content, hands every batch to every exporter, and gives up cleanly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memexport import pipeline
from memexport.errors import InputError, OutputError, UsageError
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables

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
