"""Two recordings beside each other: what B has more or less of than A, and both on one time line."""

from __future__ import annotations

import contextlib
from pathlib import PurePath
from typing import BinaryIO, Final

import numpy as np

from memexport import pipeline
from memexport.analysis.diff import Diff, compare
from memexport.analysis.step_uses import StepUseFold
from memexport.analysis.summary import Summary, SummaryFold
from memexport.errors import UsageError
from memexport.pipeline import Progress, Recording, StrPath
from memexport.sources.side_by_side import Side, SideBySideSource

_NEVER: Final = np.iinfo(np.int64).max

Comparable = StrPath | BinaryIO | Recording


def diff(a: Comparable, b: Comparable, *, progress: Progress | None = None) -> Diff:
    """What the recording `b` has more or less of than `a`: at their peaks, and in the steps that both have.

    Devices are matched by name, "cuda:0". The changes by category, module and operator add up to the gap
    between the peaks; what no allocation explains is a row of its own.

    Args:
        a: whatever `memexport.open` takes, or a recording: that stays open.
        b: likewise.
        progress: called after each batch.

    Raises:
        InputError: one of them cannot be read.
        UsageError: fsspec is not installed.
    """
    with contextlib.ExitStack() as opened:
        first, second = (
            one if isinstance(one, Recording) else opened.enter_context(pipeline.open(one)) for one in (a, b)
        )
        (a_summary, a_steps), (b_summary, b_steps) = (_read(one, progress) for one in (first, second))
        return compare(
            (first.name, second.name), (a_summary, b_summary), (a_steps.result(), b_steps.result())
        )


def side_by_side(a: Recording, b: Recording) -> Recording:
    """Both on one time line that begins at 0, as two processes named "A NAME" and "B NAME".

    One of several ranks is a process for each, "A NAME rank 3". Both are read once, for their earliest times
    and their ranks. Closing it closes both.

    Raises:
        UsageError: one has a clock and the other has none.
        InputError: one of them cannot be read.
    """
    if a.info.clock != b.info.clock:
        without = a if a.info.clock == "index" else b
        raise UsageError(f"{without.name} has no clock, so both cannot be drawn on one time line")
    sides = [_side(letter, recording) for letter, recording in (("A", a), ("B", b))]
    return Recording(a.path, SideBySideSource(sides), f"{a.name} and {b.name}")


def _read(recording: Recording, progress: Progress | None) -> tuple[Summary, StepUseFold]:
    summary = SummaryFold(recording.info, recording.tables)
    steps = StepUseFold(recording.info, recording.tables)
    events = 0
    for batch in recording.batches():
        summary.add(batch)
        steps.add(batch)
        events += len(batch)
        if progress is not None:
            progress(events, recording.fraction_read)
    return summary.result(recording.end()), steps


def _side(letter: str, recording: Recording) -> Side:
    first, ranks = _NEVER, set()
    for batch in recording.batches():
        first = min(first, int(batch.time_unix_ns.min(initial=_NEVER)))
        ranks.update(np.unique(batch.rank).tolist())
    name = f"{letter} {PurePath(recording.name).name}"
    return Side(recording._source, name, _processes(name, ranks), 0 if first == _NEVER else first)


def _processes(name: str, ranks: set[int]) -> dict[int, str]:
    """What to call the process of each rank, such that rank 2 comes before rank 10 by name."""
    known = ranks - {-1}
    if len(known) < 2:
        return dict.fromkeys(ranks, name)
    width = len(str(max(known)))
    return {rank: name if rank < 0 else f"{name} rank {rank:0{width}}" for rank in sorted(ranks)}
