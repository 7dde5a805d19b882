"""From a source to exporters: open any recording, write it in any format."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from memexport import registry
from memexport.analysis.summary import Summary, SummaryFold
from memexport.errors import InputError, UsageError
from memexport.exporters import Exporter, FileDestination
from memexport.model import EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.sources import Source

StrPath = str | os.PathLike[str]
Progress = Callable[[int, float | None], None]
"""Called after each batch with the events done so far and the fraction of the input read (None: unknown)."""

_HEAD_BYTES = 65_536


class Recording:
    """A recording in a file, opened by `memexport.open`; a context manager that closes it.

    Attributes:
        path: the file.
        info: what is true for the whole recording.
        tables: what the ids in the columns stand for; grows while batches are read.
    """

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
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

    def close(self) -> None:
        """Give the file back. Calling it twice does nothing."""
        self._source.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<memexport recording {os.fspath(self.path)!r} ({self.info.format})>"


def open(path: StrPath) -> Recording:  # noqa: A001 - the public name is memexport.open, as gzip.open is
    """Open a recording of any format that memexport reads; its content says which, not its name.

    Raises:
        InputError: it does not exist, cannot be read, or is of no known format.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error)) from error
    if not head:
        raise InputError(path, None, "the file is empty")
    for candidate in registry.sources():
        source_class = candidate.load()
        if source_class.sniff(head):  # type: ignore[attr-defined]  # Callable to mypy, a Source class by contract
            return Recording(path, source_class(path))
    raise InputError(
        path, None, "not a recording of any format that memexport reads", hint="memexport formats"
    )


def exporter_to(
    path: StrPath,
    *,
    to: str | None = None,
    overwrite: bool = False,
    atomic: bool = True,
    options: Mapping[str, object] | None = None,
) -> Exporter:
    """The exporter that writes this file: in the format `to`, else the one its suffix says.

    `options` are keyword arguments of the exporter's class, beside its destination.

    Raises:
        UsageError: no format fits, or the format has no such option.
    """
    found = registry.exporter_for(path, to)
    exporter_class, options = found.load(), options or {}
    for name in options.keys() - inspect.signature(exporter_class).parameters.keys():
        raise UsageError(f"the format {found.name} has no option {name!r}")
    exporter: Exporter = exporter_class(FileDestination(Path(path), overwrite, atomic), **options)
    return exporter


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
    source: StrPath,
    output: StrPath,
    *,
    to: str | None = None,
    overwrite: bool = False,
    options: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> RecordingEnd:
    """Read `source`, whatever its format, and write `output` in the format `to` or its suffix says.

    The output appears when it is complete; after an error, whatever was there before is untouched.
    `options` are the exporter's own: keyword arguments of its class.

    Returns:
        What the source had to say at its end: its warnings.

    Raises:
        UsageError: no format fits the output's name, it has no such option, or output and source are one
            file.
        InputError: the source cannot be read.
        OutputError: the output exists and `overwrite` is false, or it cannot be written.
    """
    exporter = exporter_to(output, to=to, overwrite=overwrite, options=options)
    with open(source) as recording:
        if Path(output).exists() and Path(output).samefile(source):
            raise UsageError(f"{os.fspath(output)!r} is the input itself")
        run(recording, [exporter], progress)
        return recording.end()


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
    "open",
    "run",
]
