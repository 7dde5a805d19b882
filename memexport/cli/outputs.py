"""OUTPUT on the command line: which file, URL or stream each INPUT is written to."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from memexport import registry, remote
from memexport.cli.inputs import STDIN
from memexport.errors import OutputError, UsageError

STDOUT: Final = "-"

_DEFAULT_FORMAT: Final = "perfetto"
_TEXT: Final = (".json", ".jsonl", ".csv")
"""Suffixes of the formats that a terminal can show."""


class Job(NamedTuple):
    """What to write where: one INPUT, or several that are merged.

    `to` is a format's name, None where the output's suffix says it.
    """

    sources: tuple[str, ...]
    output: str
    to: str | None


def planned(inputs: Sequence[str], output: str | None, to: str | None) -> list[Job]:
    """The job for each INPUT, checked as far as that can be done before anything is read.

    Raises:
        UsageError: it is not clear what to write where, or in which format.
    """
    if output == STDOUT:
        jobs = [_to_stdout(inputs, to)]
    elif output is None or (names_folder(output) and not _is_folder_format(to)):
        jobs = list(_named_after(inputs, output, to or _DEFAULT_FORMAT))
    else:
        jobs = [Job(tuple(inputs), output, to)]
    for job in jobs:
        registry.exporter_for(job.output, job.to)
    _check_distinct(jobs)
    return jobs


def default_output(source: Path, to: str) -> Path:
    """Beside the input, under its name, with the format's suffix instead of the one that it is known by.

    Raises:
        UsageError: there is no such format, or it is not written into a file.
    """
    suffix = _suffix(to)
    known = {s for f in (*registry.sources(), *registry.exporters()) for s in f.suffixes}
    fitting = [s for s in known if source.name.lower().endswith(s) and len(s) < len(source.name)]
    stem = source.name[: -len(max(fitting, key=len))] if fitting else source.name
    return source.with_name(stem + suffix)


def make_folder(output: str | None) -> None:
    """Make the folder that OUTPUT names, if it names one that is not there.

    Raises:
        OutputError: it cannot be made.
    """
    if output is None or remote.is_url(output) or not names_folder(output):
        return
    try:
        Path(output).mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(output, None, error.strerror or str(error)) from error


def _to_stdout(inputs: Sequence[str], to: str | None) -> Job:
    if to is None:
        raise UsageError("-o - does not say which format to write", hint="--to FORMAT does")
    if not _suffix(to).endswith(_TEXT) and sys.stdout.isatty():
        raise UsageError(
            f"{to} is a binary format, and stdout is a terminal", hint="-o FILE, or a pipe after -o -"
        )
    return Job(tuple(inputs), STDOUT, to)


def _named_after(inputs: Sequence[str], folder: str | None, to: str) -> Iterable[Job]:
    """Each beside its input, or in the folder; of an input behind a URL, in the working directory."""
    for source in inputs:
        if source == STDIN:
            raise UsageError("what comes through stdin has no name", hint="-o FILE names what is written")
        local = Path(posixpath.basename(source.rstrip("/"))) if remote.is_url(source) else Path(source)
        beside = default_output(local, to)
        if folder is None:
            yield Job((source,), str(beside), to)
        elif remote.is_url(folder):
            yield Job((source,), f"{folder.rstrip('/')}/{beside.name}", to)
        else:
            yield Job((source,), str(Path(folder) / beside.name), to)


def _suffix(to: str) -> str:
    if _is_folder_format(to):
        raise UsageError(f"{to} is not written into a single file", hint="-o DIR/")
    return registry.exporter_for("", to).suffixes[0]


def _is_folder_format(to: str | None) -> bool:
    """Whether the format makes its own file in the folder it is given: one that no suffix stands for."""
    return to is not None and not registry.exporter_for("", to).suffixes


def names_folder(output: str) -> bool:
    """Whether OUTPUT is a folder, not a file: it is one, or ends like one."""
    return output.endswith(("/", os.sep)) or (not remote.is_url(output) and Path(output).is_dir())


def _check_distinct(jobs: Sequence[Job]) -> None:
    """Of several, none may be written over another, nor over one that is still to be read."""
    read = {_place(source): source for job in jobs for source in job.sources}
    several = len(read) > 1
    written: dict[str, str] = {}
    for job in jobs:
        place, name = _place(job.output), job.sources[0]
        if place in written:
            raise UsageError(f"{written[place]!r} and {name!r} would both be written to {job.output!r}")
        if several and place in read:
            raise UsageError(f"{name!r} would be written to {job.output!r}, which is an INPUT itself")
        written[place] = name


def _place(name: str) -> str:
    return name if remote.is_url(name) else os.path.realpath(name)
