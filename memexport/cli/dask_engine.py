"""`--engine dask`: one task per output, on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from memexport import remote
from memexport.cli.conversion import Conversion, Written, perform
from memexport.errors import InputError, MemexportError, UsageError
from memexport.pipeline import Progress

_PATIENCE: Final = "10s"
"""How long a scheduler may take to answer."""

Outcome = Callable[[], Written]
"""Gives what was written, or raises what went wrong."""


def on_dask(
    conversions: Sequence[Conversion], scheduler: str | None, progress: Progress | None
) -> list[Outcome]:
    """Do them all on the cluster at this address, or on one of this machine's cores; in their order.

    Local paths must mean the same on every worker.

    Raises:
        UsageError: Dask is not installed, or no scheduler answers.
    """
    distributed = _distributed()
    if scheduler is not None:
        conversions = [_with_whole_paths(conversion) for conversion in conversions]
    with _client(distributed, scheduler, len(conversions)) as client:
        futures = client.map(perform, conversions, pure=False)
        for count, _ in enumerate(distributed.as_completed(futures), 1):
            if progress is not None:
                progress(count, count / len(futures))
        # Asked for here: without the cluster, nothing could be asked for any more.
        return [_outcome(future, conversion) for future, conversion in zip(futures, conversions, strict=True)]


def _outcome(future: Any, conversion: Conversion) -> Outcome:
    error = future.exception()
    if error is None:
        written: Written = future.result()
        return lambda: written
    if not isinstance(error, MemexportError):
        error = InputError(conversion.job.sources[0], None, f"its task failed: {error!r}")
    return lambda: _raise(error)


def _raise(error: MemexportError) -> Written:
    raise error


@contextmanager
def _client(distributed: Any, scheduler: str | None, tasks: int) -> Iterator[Any]:
    if scheduler is None:
        # Processes: Python decodes one recording at a time in each.
        from dask.system import CPU_COUNT

        workers = min(tasks, CPU_COUNT)
        options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
            yield client
        return
    try:
        client = distributed.Client(scheduler, timeout=_PATIENCE)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {scheduler!r}: {error}", hint="dask scheduler starts one"
        ) from error
    with client:
        yield client


def _with_whole_paths(conversion: Conversion) -> Conversion:
    """A worker has another working directory."""
    job = conversion.job
    return replace(
        conversion,
        job=job._replace(sources=tuple(map(_whole, job.sources)), output=_whole(job.output)),
    )


def _whole(name: str) -> str:
    return name if remote.is_url(name) else str(Path(name).absolute())


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise UsageError("--engine dask needs Dask", hint="pip install 'memexport[dask]'") from error
    return distributed
