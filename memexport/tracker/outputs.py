"""The exporters that a tracker writes to."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memexport import pipeline
from memexport.analysis.sizes import parse_size
from memexport.archive_limit import check_limit, is_archive
from memexport.errors import UsageError
from memexport.exporters.destination import FileDestination
from memexport.exporters.rotating_archive import RotatingArchiveExporter
from memexport.ranks import Process, filled_for_one
from memexport.tracker.ranks import process_ranks

if TYPE_CHECKING:
    from memexport.exporters import Exporter

log = logging.getLogger("memexport")

StrPath = str | os.PathLike[str]


def archive_limit(asked: int | str | None, outputs: Sequence[StrPath | Exporter]) -> int | None:
    """The bytes that each archive among these outputs is kept within; None for any size.

    Raises:
        UsageError: it is no size or too small, or there is no archive.
    """
    if asked is None:
        return None
    try:
        limit = asked if isinstance(asked, int) else parse_size(asked)
    except ValueError as error:
        raise UsageError(f"max_bytes: {error}", hint='max_bytes="100MiB"') from error
    check_limit(limit, [output for output in outputs if isinstance(output, (str, os.PathLike))])
    return limit


def exporters_to(outputs: Sequence[StrPath | Exporter], max_bytes: int | None) -> list[Exporter]:
    """Those that are given, and one to each path of this process; archives are kept within `max_bytes`."""
    process = process_ranks()
    return [_exporter(output, process, max_bytes) for output in outputs]


def _exporter(output: StrPath | Exporter, process: Process, max_bytes: int | None) -> Exporter:
    if not isinstance(output, (str, os.PathLike)):
        return output
    name, changed = filled_for_one(os.fspath(output), process)
    if changed:
        log.warning("%s", changed)
    return exporter_at(name, max_bytes)


def exporter_at(path: StrPath, max_bytes: int | None) -> Exporter:
    """The one to this very path, which has no placeholders any more."""
    if max_bytes is not None and is_archive(path):
        return RotatingArchiveExporter(FileDestination(Path(path), overwrite=True, atomic=False), max_bytes)
    return pipeline.exporter_to(path, overwrite=True, atomic=False)
