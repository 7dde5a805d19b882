"""From a source to exporters: open any recording, write it in any format."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from memexport import registry, remote
from memexport.analysis.module_memory import ModuleMemory, ModuleMemoryFold
from memexport.analysis.selection import Selection
from memexport.analysis.summary import Summary, SummaryFold
from memexport.analysis.timeline import Timeline
from memexport.analysis.timeline_fold import TimelineFold
from memexport.errors import InputError, UsageError
from memexport.exporters import Exporter, _dataframes
from memexport.exporters.destination import Destination, FileDestination, StreamDestination
from memexport.exporters.remote_destination import RemoteDestination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources import Source
from memexport.sources.copied import CopiedSource, copy_of, naming
from memexport.sources.merged import MergedSource
from memexport.sources.selected import SelectedSource

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from memexport.plot.inline import InlinePage
    from memexport.plot.page import PageTheme

StrPath = str | os.PathLike[str]
Progress = Callable[[int, float | None], None]
"""Called after each batch with the events done so far and the fraction of the input read (None: unknown)."""

_HEAD_BYTES = 65_536


class Recording:
    """A recording in a file, opened by `memexport.open`; a context manager that closes it.

    Attributes:
        path: the file; of what is behind a URL or came through a stream, the temporary copy.
        name: what it was opened as: the path, the URL, the stream's name.
        info: what is true for the whole recording.
        tables: what the ids in the columns stand for; grows while batches are read.
    """

    def __init__(self, path: Path, source: Source, name: str | None = None) -> None:
        self.path = path
        self.name = os.fspath(path) if name is None else name
        self.info: RecordingInfo = source.info
        self.tables: Tables = source.tables
        self._source = source

    def batches(self) -> Iterator[EventBatch]:
        """Every event in order, in batches of a few thousand. Can be called again to read it once more.

        Raises:
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        return self._source.batches()

    def end(self) -> RecordingEnd:
        """Warnings and totals; complete once `batches` is exhausted."""
        return self._source.end()

    @property
    def fraction_read(self) -> float | None:
        """How much of the file the running pass of `batches` has read, 0 to 1; None if that is unknown."""
        return self._source.fraction_read

    def summary(self, progress: Progress | None = None) -> Summary:
        """Read the whole recording and sum it up.

        Raises:
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        fold = SummaryFold(self.info, self.tables)
        for batch in _watched(self, progress):
            fold.add(batch)
        return fold.result(self.end())

    def timeline(self, progress: Progress | None = None) -> Timeline:
        """Read the whole recording, and fold it into what pictures show: see `memexport.plot`.

        Raises:
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        fold = TimelineFold(self.info, self.tables)
        for batch in _watched(self, progress):
            fold.add(batch)
        return fold.result(self.end())

    def modules(self, progress: Progress | None = None) -> tuple[ModuleMemory, ...]:
        """Read the whole recording, and say what each module did to memory: in forward, backward, recompute.

        Raises:
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        fold = ModuleMemoryFold(self.info, self.tables)
        for batch in _watched(self, progress):
            fold.add(batch)
        return fold.result()

    def to_arrow(self) -> pyarrow.Table:
        """Every event as a row of an Arrow table: the columns of a Parquet file, its metadata too.

        Raises:
            UsageError: pyarrow is not installed.
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        return _dataframes.arrow_table(self.info, self.tables, self.batches(), self.end)

    def to_pandas(self) -> pandas.DataFrame:
        """Every event as a row: categories for texts, integers that may be missing.

        Raises:
            UsageError: pandas or pyarrow is not installed.
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        return _dataframes.pandas_frame(self.to_arrow())

    def to_polars(self) -> polars.DataFrame:
        """Every event as a row, with categories for texts.

        Raises:
            UsageError: polars or pyarrow is not installed.
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        return _dataframes.polars_frame(self.to_arrow())

    def select(self, selection: Selection) -> Recording:
        """A part of this recording, which stays open: closing either closes both.

        Raises:
            UsageError: the selection names a time, but the recording has no clock.
            InputError: the file is damaged before the range that is selected.
        """
        return Recording(self.path, SelectedSource(self._source, selection), self.name)

    def plot(self, *, theme: PageTheme = "auto", height: int = 720) -> InlinePage:
        """Read the whole recording, and draw it over time, to explore in a notebook.

        Raises:
            InputError: the file is damaged in a way that reading cannot go on from.
        """
        from memexport.plot.inline import InlinePage
        from memexport.plot.page import render_page

        return InlinePage(render_page(self.timeline(), theme=theme), height)

    def _repr_html_(self) -> str:
        """How a notebook shows it; the file is not read for that."""
        from memexport.analysis.notebook import recording_html

        return recording_html(self.name, self.info)

    def close(self) -> None:
        """Give the file back. Calling it twice does nothing."""
        self._source.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<memexport recording {self.name!r} ({self.info.format})>"


def open(  # noqa: A001 - the public name is memexport.open, as gzip.open is
    source: StrPath | BinaryIO, progress: Progress | None = None
) -> Recording:
    """Open a recording of any format that memexport reads; its content says which, not its name.

    Args:
        source: a path; text with a protocol, "s3://bucket/run.memx", which fsspec opens; or a stream of
            bytes, which is read to its end. The last two are copied to a temporary file first.
        progress: called while a URL's file is copied, with bytes in place of events, and by formats that
            can only be read as a whole.

    Raises:
        UsageError: fsspec is not installed.
        InputError: it does not exist, cannot be read, or is of no known format.
    """
    if not isinstance(source, (str, os.PathLike)):
        name = str(getattr(source, "name", "stream"))
        return _opened_copy(
            name,
            copy_of(name, lambda file: shutil.copyfileobj(source, file, remote.CHUNK_BYTES)),
            progress,
        )
    if remote.is_url(source):
        url = os.fspath(source)
        return _opened_copy(url, copy_of(url, lambda file: remote.fetch(url, file, progress)), progress)
    path = Path(source)
    return Recording(path, _opened(path, progress))


def merge(sources: Sequence[StrPath], progress: Progress | None = None) -> Recording:
    """Open the recordings of several ranks as one, merged by time; each event has its rank.

    One that cannot be opened, breaks off, or is missing is named in a warning of the end.

    Raises:
        UsageError: there are no sources, one has no clock, or fsspec is not installed for a URL.
        InputError: none of them can be opened; the first one's.
    """
    opened: list[Recording] = []
    refused: list[InputError] = []
    for source in sources:
        try:
            opened.append(open(source, progress))
        except InputError as error:
            refused.append(error)
    if not opened:
        raise refused[0] if refused else UsageError("there are no recordings to merge")
    for recording in opened:
        if recording.info.clock == "index":
            raise UsageError(
                f"{recording.name} has no clock, so it cannot be merged by time",
                hint="a folder after -o converts each by itself",
            )
    parts = [recording._source for recording in opened]
    merged = MergedSource(parts, [recording.name for recording in opened], list(map(str, refused)))
    name = f"{opened[0].name} and {len(opened) - 1} more" if len(opened) > 1 else opened[0].name
    return Recording(opened[0].path, merged, name)


def _opened_copy(name: str, copy: Path, progress: Progress | None) -> Recording:
    try:
        with naming(copy, name):
            source = CopiedSource(_opened(copy, progress), copy, name)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return Recording(copy, source, name)


def _opened(path: Path, progress: Progress | None) -> Source:
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except IsADirectoryError as error:
        raise InputError(path, None, "is a folder", hint="name the files in it") from error
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error)) from error
    if not head:
        raise InputError(path, None, "the file is empty")
    for candidate in registry.sources():
        source_class = candidate.load()
        if source_class.sniff(head):  # type: ignore[attr-defined]  # Callable to mypy, a Source class by contract
            source: Source = source_class(path, **_watching(source_class, progress))
            return source
    raise InputError(
        path, None, "not a recording of any format that memexport reads", hint="memexport formats"
    )


def _watching(
    source_class: Callable[..., object], progress: Progress | None
) -> dict[str, Callable[[float], None]]:
    """What to tell a source that reads the whole file when it is constructed."""
    if progress is None or "progress" not in inspect.signature(source_class).parameters:
        return {}
    return {"progress": lambda fraction: progress(0, fraction)}


def exporter_to(
    output: StrPath | BinaryIO,
    *,
    to: str | None = None,
    overwrite: bool = False,
    atomic: bool = True,
    options: Mapping[str, object] | None = None,
) -> Exporter:
    """The exporter that writes to this path, URL or stream: in the format `to`, else the one its suffix says.

    `options` are keyword arguments of the exporter's class, beside its destination.

    Raises:
        UsageError: no format fits, or the format has no such option.
    """
    name = output if isinstance(output, (str, os.PathLike)) else ""
    if to is None and not name:
        raise UsageError("the output has no name that says which format to write", hint="memexport formats")
    found = registry.exporter_for(name, to)
    exporter_class, options = found.load(), options or {}
    for name in options.keys() - inspect.signature(exporter_class).parameters.keys():
        raise UsageError(f"the format {found.name} has no option {name!r}")
    exporter: Exporter = exporter_class(_destination(output, overwrite, atomic), **options)
    return exporter


def _destination(output: StrPath | BinaryIO, overwrite: bool, atomic: bool) -> Destination:
    if not isinstance(output, (str, os.PathLike)):
        return StreamDestination(output)
    if remote.is_url(output):
        return RemoteDestination(os.fspath(output), overwrite, atomic)
    return FileDestination(Path(output), overwrite, atomic)


def run(recording: Recording, exporters: Sequence[Exporter], progress: Progress | None = None) -> int:
    """Send every event to every exporter; the number of events. On an error, all of them are aborted.

    Raises:
        InputError: the recording cannot be read to its end.
        OutputError: an exporter cannot write.
    """
    events = 0
    try:
        for exporter in exporters:
            exporter.begin(recording.info, recording.tables)
        for batch in _watched(recording, progress):
            events += len(batch)
            for exporter in exporters:
                exporter.write(batch)
        for exporter in exporters:
            exporter.end(recording.end())
    except BaseException:
        for exporter in exporters:
            exporter.abort()
        raise
    return events


def convert(
    source: StrPath | BinaryIO | Recording,
    output: StrPath | BinaryIO,
    *,
    to: str | None = None,
    overwrite: bool = False,
    options: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> RecordingEnd:
    """Read `source`, whatever its format, and write `output` in the format `to` or its suffix says.

    The output appears when it is complete; after an error, whatever was there before is untouched. To a
    stream, bytes are written as they come.

    Args:
        source: whatever `memexport.open` takes, or a recording: that stays open, and may be a part of one
            (`Recording.select`).
        output: a path, a URL or a stream that takes bytes; a stream needs `to`.
        to: the format's name.
        overwrite: replace the output if it exists.
        options: the exporter's own: keyword arguments of its class.
        progress: called after each batch.

    Returns:
        What the source had to say at its end: its warnings.

    Raises:
        UsageError: no format fits the output's name, it has no such option, or output and source are one
            file.
        InputError: the source cannot be read.
        OutputError: the output exists and `overwrite` is false, or it cannot be written.
        BrokenPipeError: nobody reads the output stream any more.
    """
    exporter = exporter_to(output, to=to, overwrite=overwrite, options=options)
    if isinstance(source, Recording):
        return _write(source, exporter, output, progress)
    with open(source) as recording:
        return _write(recording, exporter, output, progress)


def _write(
    recording: Recording, exporter: Exporter, output: StrPath | BinaryIO, progress: Progress | None
) -> RecordingEnd:
    if isinstance(output, (str, os.PathLike)) and _is_same(output, recording):
        raise UsageError(f"{os.fspath(output)!r} is the input itself")
    run(recording, [exporter], progress)
    return recording.end()


def _is_same(output: StrPath, recording: Recording) -> bool:
    if remote.is_url(output):
        return output == recording.name
    path = Path(output)
    return path.exists() and path.samefile(recording.path)


def _watched(recording: Recording, progress: Progress | None) -> Iterator[EventBatch]:
    events = 0
    for batch in recording.batches():
        yield batch
        events += len(batch)
        if progress is not None:
            progress(events, recording.fraction_read)


__all__ = [
    "Progress",
    "Recording",
    "convert",
    "exporter_to",
    "merge",
    "open",
    "run",
]
