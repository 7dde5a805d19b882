"""`torch.profiler`: what it records becomes a memexport recording, each time that it has a trace ready."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from memexport import pipeline, ranks, registry
from memexport.errors import UsageError
from memexport.integrations._outputs import name_with
from memexport.pipeline import Recording, StrPath
from memexport.tracker.ranks import process_ranks

if TYPE_CHECKING:
    from torch.profiler import profile

log = logging.getLogger("memexport")

_STEP: Final = "{step}"


def handler(*outputs: StrPath, worker_name: str | None = None) -> Callable[[profile], None]:
    """What to give `torch.profiler.profile` as `on_trace_ready`: writes the trace to each output.

    ```python
    with torch.profiler.profile(profile_memory=True, on_trace_ready=handler("out.pftrace")) as profiler:
        ...
    ```

    The first trace goes to "out.pftrace"; the next ones, if the profiler's schedule repeats, to
    "out-2.pftrace", "out-3.pftrace"; unless "{step}" in the name is replaced by the profiler's step at which
    the trace was ready. Files that are there already are replaced. The profiler's trace itself goes to a
    temporary folder and is gone afterwards: the profiler can save each trace only once, so nothing else can
    in the same `on_trace_ready`.

    Never raises into the training: what goes wrong is a warning in the log "memexport".

    Args:
        outputs: paths, as a `Tracker` takes them: the suffix says the format, `{rank}` is replaced.
        worker_name: what tells this process' files from others', before the suffix. None: its rank, where
            there are several.

    Raises:
        UsageError: there is no output, no format fits one, or it has another placeholder. Raised at once, not
            by what is returned.
    """
    if not outputs:
        raise UsageError("handler has nothing to write to", hint='handler("out.pftrace")')
    for output in outputs:
        registry.exporter_for(output)
    names = _Names(outputs, worker_name)

    def on_trace_ready(profiler: profile) -> None:
        try:
            _write(profiler, names.next(profiler.step_num))
        except Exception as error:  # the training must not end for it
            log.warning("memexport: the profiler's trace was not written: %s", error)

    return on_trace_ready


class _Names:
    """What the outputs of one trace after another are called."""

    def __init__(self, outputs: tuple[StrPath, ...], worker_name: str | None) -> None:
        self._outputs = [os.fspath(output) for output in outputs]
        self._worker_name = worker_name
        self._traces = 0
        self.next(0)  # says at once what is wrong with a name
        self._traces = 0

    def next(self, step: int) -> list[str]:
        self._traces += 1
        return [self._name(output, step) for output in self._outputs]

    def _name(self, output: str, step: int) -> str:
        own = self._own(output.replace(_STEP, str(step)))
        return own if self._traces == 1 or _STEP in output else name_with(own, str(self._traces))

    def _own(self, name: str) -> str:
        if self._worker_name is None:
            return ranks.filled_for_one(name, process_ranks())[0]
        return name_with(ranks.filled(name, process_ranks()), self._worker_name)


def _write(profiler: profile, outputs: list[str]) -> None:
    if not profiler.profile_memory:
        log.warning(
            "memexport: the profiler did not record memory, nothing was written to %s; "
            "torch.profiler.profile(profile_memory=True) does",
            ", ".join(outputs),
        )
        return
    with tempfile.TemporaryDirectory(prefix="memexport-") as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        with pipeline.open(trace) as recording:
            for output in outputs:
                _convert(recording, output)


def _convert(recording: Recording, output: str) -> None:
    """One that cannot be written leaves the others their chance."""
    try:
        pipeline.convert(recording, output, overwrite=True)
    except Exception as error:
        log.warning("memexport: the profiler's trace was not written to %s: %s", output, error)
