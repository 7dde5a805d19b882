"""What `memexport convert` does for one output, as a value: it can be done here or on another machine."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from memexport import remote
from memexport.cli.outputs import STDOUT, Job
from memexport.errors import OutputError

if TYPE_CHECKING:
    from memexport.analysis.selection import Selection
    from memexport.model import RecordingInfo
    from memexport.pipeline import Progress, Recording


@dataclass(frozen=True)
class Conversion:
    """Which INPUTs to write where, and how.

    Attributes:
        overwrite: replace an output that exists.
        options: the exporter's own.
        selection: the part of the recording that is written.
        by_rank: write into a folder of the recording's rank, "rank=3", beside where the job says.
    """

    job: Job
    overwrite: bool
    options: Mapping[str, object]
    selection: Selection
    by_rank: bool = False


class Written(NamedTuple):
    """What was written, and what there is to say of it."""

    output: str
    warnings: tuple[str, ...]


def perform(conversion: Conversion) -> Written:
    """Do it, silently; it can be sent to another process, and so can what comes back.

    Raises:
        MemexportError: it cannot be done.
    """
    from memexport import pipeline

    sources = conversion.job.sources
    with pipeline.open(sources[0]) if len(sources) == 1 else pipeline.merge(sources) as recording:
        return write(conversion, recording, None)


def write(conversion: Conversion, recording: Recording, progress: Progress | None) -> Written:
    """Do what is left to do when the INPUTs are open.

    Raises:
        MemexportError: it cannot be done.
    """
    from memexport import pipeline

    job = conversion.job
    output = _in_folder_of_rank(job.output, recording.info) if conversion.by_rank else job.output
    end = pipeline.convert(
        recording.select(conversion.selection),
        target(output),
        to=job.to,
        overwrite=conversion.overwrite,
        options=conversion.options,
        progress=progress,
    )
    return Written(output, end.warnings)


def target(output: str) -> str | BinaryIO:
    """The path or URL; the stream, if it is `-`."""
    return sys.stdout.buffer if output == STDOUT else output


def _in_folder_of_rank(output: str, info: RecordingInfo) -> str:
    """The same name in a folder of the rank beside it, which is made."""
    from memexport.exporters.parquet import partition

    if remote.is_url(output):
        return posixpath.join(posixpath.dirname(output), partition(info), posixpath.basename(output))
    path = Path(output)
    folder = path.parent / partition(info)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(folder, None, error.strerror or str(error)) from error
    return os.fspath(folder / path.name)
