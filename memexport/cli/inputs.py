"""INPUT on the command line: files, URLs, `-`; one or several."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from memexport import remote
from memexport.cli.progress import progress_bar
from memexport.cli.terminal import say_failure
from memexport.errors import MemexportError, UsageError

if TYPE_CHECKING:
    from memexport.pipeline import Recording

STDIN: Final = "-"


def opened(name: str) -> Recording:
    """The recording that INPUT names, opened."""
    from memexport import pipeline

    if name == STDIN:
        return pipeline.open(sys.stdin.buffer)
    is_url = remote.is_url(name)
    with progress_bar(f"{'Fetching' if is_url else 'Reading'} {name}", "bytes" if is_url else "") as progress:
        return pipeline.open(name, progress)


def opened_together(names: Sequence[str]) -> Recording:
    """The recordings of several ranks as one; of one INPUT, that.

    Raises:
        UsageError: stdin is one of several.
    """
    from memexport import pipeline

    if len(names) == 1:
        return opened(names[0])
    if STDIN in names:
        raise UsageError("stdin cannot be one of several", hint="write it to a file first")
    with progress_bar(f"Reading {len(names)} recordings", "") as progress:
        return pipeline.merge(names, progress)


def expanded(context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """INPUTs, as click's callback: where one is a URL with a `*`, those that it stands for.

    A shell does that for paths.

    Raises:
        UsageError: fsspec, or its package for the protocol, is not installed.
        InputError: no file has such a name, or they cannot be listed.
    """
    if context.resilient_parsing:  # completing, which is no time to ask a network
        return names
    each = [remote.matching(name) if remote.is_pattern(name) else [name] for name in names]
    return tuple(itertools.chain.from_iterable(each))


def for_each(names: Sequence[str], action: Callable[[str], None]) -> int:
    """Do it for every INPUT; of several, one that fails is said and does not keep the rest from being done.

    Returns:
        0, or the exit code of the first that failed.

    Raises:
        UsageError: stdin is named twice.
        MemexportError: the only one failed.
    """
    if names.count(STDIN) > 1:
        raise UsageError("stdin can be read once only")
    if len(names) == 1:
        action(names[0])
        return 0
    exit_code = 0
    for name in names:
        try:
            action(name)
        except MemexportError as error:
            say_failure(error, about=name)
            exit_code = exit_code or error.exit_code
    return exit_code
