"""INPUT where a trace is needed: a trace as it is, or any recording, converted to a temporary one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from memexport import registry
from memexport.cli.inputs import opened
from memexport.cli.progress import progress_bar
from memexport.cli.terminal import warn
from memexport.errors import InputError, MemexportError

_LARGEST_TO_SEARCH_BYTES: Final = 64 << 20
"""A larger trace is shown without looking for its peak before: that would take longer than finding it."""

# In a Chrome trace a counter is called by its name and its argument's: "cpu allocated bytes".
_PEAK: Final = """
SELECT ts FROM counter JOIN counter_track ON counter_track.id = track_id
WHERE counter_track.name GLOB '*allocated' OR counter_track.name GLOB '*allocated bytes'
ORDER BY value DESC, ts LIMIT 1
"""
_STEP: Final = """
SELECT ts, ts + dur AS end FROM slice
WHERE name GLOB 'step [0-9]*' AND ts <= {peak} AND ts + dur >= {peak} ORDER BY dur LIMIT 1
"""
_BOUNDS: Final = "SELECT start_ts, end_ts FROM trace_bounds"


class Trace(NamedTuple):
    """A trace that Perfetto reads.

    Attributes:
        path: the file.
        name: what to call it: the INPUT's own name, with a trace's suffix.
        window: the first and last nanosecond to look at, around the peak; None if it is not known.
    """

    path: Path
    name: str
    window: tuple[int, int] | None


@contextlib.contextmanager
def trace_of(name: str, *, searched: bool = True) -> Iterator[Trace]:
    """The trace that INPUT is or becomes; a temporary one is gone when the block ends.

    Args:
        name: INPUT.
        searched: whether to look for the peak in what is a trace already, which loads it.

    Raises:
        InputError: it cannot be read, or is neither a trace nor a recording.
    """
    if _is_trace(name):
        yield Trace(Path(name), Path(name).name, _window_in(Path(name)) if searched else None)
        return
    with tempfile.TemporaryDirectory(prefix="memexport-") as folder:
        yield _converted(name, Path(folder) / "recording.pftrace")


def _is_trace(name: str) -> bool:
    """By its name. JSON is one unless it is a recording of torch.profiler, whose memory is then shown."""
    fitting = {f.name for f in registry.EXPORTERS if name.lower().endswith(f.suffixes or ("\0",))}
    if "perfetto" in fitting:
        return True
    return "chrome" in fitting and _is_readable(name) and not _is_recording(name)


def _is_readable(name: str) -> bool:
    try:
        with Path(name).open("rb"):
            return True
    except OSError as error:
        raise InputError(name, None, error.strerror or str(error)) from error


def _is_recording(name: str) -> bool:
    try:
        opened(name).close()
    except InputError:
        return False
    return True


def _converted(name: str, path: Path) -> Trace:
    from memexport import pipeline
    from memexport.exporters._peak_window import PeakWindow

    peak = PeakWindow()
    with opened(name) as recording, progress_bar(f"Converting {recording.name}") as progress:
        pipeline.run(recording, [pipeline.exporter_to(path), peak], progress)
        warnings = recording.end().warnings
    warn(warnings)
    return Trace(path, f"{Path(name).name}.pftrace", peak.window())


def _window_in(path: Path) -> tuple[int, int] | None:
    """Found by asking the trace, where that can be done; what is wrong with it the viewer will say."""
    from memexport.exporters._peak_window import Window, window_around
    from memexport.trace_processor import TraceProcessor

    try:
        if path.stat().st_size > _LARGEST_TO_SEARCH_BYTES:
            return None
        with TraceProcessor() as processor:
            processor.load(path)
            peak = [row["ts"] for row in processor.query(_PEAK)]
            if not peak:
                return None
            step = [Window(row["ts"], row["end"]) for row in processor.query(_STEP.format(peak=peak[0]))]
            bounds = processor.query(_BOUNDS)[0]
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error)) from error
    except MemexportError:
        return None
    return window_around(peak[0], step[0] if step else None, Window(bounds["start_ts"], bounds["end_ts"]))
