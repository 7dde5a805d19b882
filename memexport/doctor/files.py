"""Whether a file can be read to its end, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from memexport.analysis.text import human_bytes
from memexport.doctor.check import Check
from memexport.errors import InputError
from memexport.pipeline import Progress, Recording

_ARCHIVE: Final = "memexport.archive"
# How the archive's reader speaks of what it found.
_LOST: Final = (" are lost", "is not read", "does not hold")
_CUT: Final = "has no end"
_NEWER: Final = "written by schema"


def file_checks(name: str, recording: Recording, progress: Progress | None = None) -> Iterator[Check]:
    """Read the whole recording, which verifies every checksum it has; what is wrong with it."""
    events = batches = 0
    try:
        for batch in recording.batches():
            events, batches = events + len(batch), batches + 1
            if progress is not None:
                progress(events, recording.fraction_read)
    except InputError as error:
        yield refused(name, error)
        return
    info = recording.info
    what = f"{info.format} {info.schema_version}, {human_bytes(recording.path.stat().st_size)}"
    verified = " with right checksums" if info.format == _ARCHIVE else ""
    warnings = recording.end().warnings
    yield Check(name, "ok", f"{what}: {events} events in {batches} batches were read{verified}")
    for warning in warnings:
        yield _about(name, warning, is_archive=info.format == _ARCHIVE)


def refused(name: str, error: InputError) -> Check:
    """A file that cannot be read, or not to its end."""
    return Check(name, "failure", str(error).removeprefix(f"{name}: "), error.hint)


def _about(name: str, warning: str, *, is_archive: bool) -> Check:
    if is_archive and any(part in warning for part in _LOST):
        step = "if it is whole where it was recorded, copy it again; what is intact is read all the same"
        return Check(name, "failure", warning, step)
    if is_archive and _CUT in warning:
        step = "if the recording is over, what is in the file is right as far as it goes"
        return Check(name, "warning", warning, step)
    if is_archive and warning.startswith(_NEWER):
        return Check(name, "warning", warning, "pip install --upgrade memexport")
    return Check(name, "warning", warning)
