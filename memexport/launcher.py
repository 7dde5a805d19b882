"""Runs a script or module as `python` would, with a tracker around it.

torch is imported by the program, not before it: a program that sets `OMP_NUM_THREADS` and then imports torch
finds what it expects. The tracker starts the moment that import is done.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memexport import registry, remote
from memexport.errors import MemexportError, OutputError, UsageError

if TYPE_CHECKING:
    from memexport.tracker import Tracker

log = logging.getLogger("memexport")


def run(
    target: Sequence[str],
    *,
    as_module: bool,
    outputs: Sequence[str],
    overwrite: bool,
    otlp: bool = False,
    otlp_traces: bool = False,
    options: Mapping[str, Any] | None = None,
    report: Callable[[str], None] = log.warning,
) -> int:
    """Run `target` (a script or module name, then its arguments) and record into `outputs`.

    `otlp` exports metrics to OpenTelemetry besides, `otlp_traces` metrics and the steps as spans. `options`
    are keyword arguments of the `Tracker`. `report` is told where a recording is until it is uploaded, and
    where a simulated program runs out of its budget.

    What the program sees (`sys.argv`, `sys.path`, `__main__`) and shows (tracebacks, exit code) is what plain
    python gives. A program that never imports torch leaves no output.

    Returns:
        The program's exit code; if that is 0 and it ran out of its budget, 1. Does not return when the
        program was interrupted: the process then ends by SIGINT, as python does.

    Raises:
        UsageError: there is no such script, a suffix means no format, or OpenTelemetry is not installed.
        OutputError: an output exists and may not be replaced, its folder is missing, or its URL cannot be
            reached.
    """
    for output in outputs:
        _check(output, overwrite=overwrite)
    if not as_module and not os.path.exists(target[0]):  # noqa: PTH110 - it may be a zip or folder; any path
        raise UsageError(f"can't open file {target[0]!r}: no such file")
    if otlp or otlp_traces:
        _check_opentelemetry()
    tracking = _Tracking(
        outputs,
        otlp=otlp or otlp_traces,
        otlp_traces=otlp_traces,
        options=options or {},
        report=report,
    )
    hook = _AfterTorch(tracking.start)
    sys.meta_path.insert(0, hook)
    try:
        if "torch" in sys.modules:
            hook.run()
        exit_code = _run_program(target, as_module=as_module, tracking=tracking)
    finally:
        hook.remove()
    for sentence in tracking.exceeded():
        report(sentence)
        exit_code = exit_code or 1
    return exit_code


class _Tracking:
    """The tracker around the program, if it ever imports torch."""

    def __init__(
        self,
        outputs: Sequence[str],
        *,
        otlp: bool,
        otlp_traces: bool,
        options: Mapping[str, Any],
        report: Callable[[str], None],
    ) -> None:
        # The program may change folders.
        self._outputs = [remote.fixed(output) for output in outputs]
        self._otlp = otlp
        self._otlp_traces = otlp_traces
        self._options = options
        self._report = report
        self._tracker: Tracker | None = None

    def start(self) -> None:
        """Begin to record. On an error the program goes on without."""
        from memexport.exporters.remote_destination import live_copy
        from memexport.tracker import Tracker
        from memexport.tracker.outputs import archive_limit, exporter_at

        options = dict(self._options)
        try:
            # Not as paths: what is in braces in their names stands for itself by now.
            limit = archive_limit(options.pop("max_bytes", None), self._outputs)
            exporters = [exporter_at(path, limit) for path in self._outputs]
            if self._otlp:
                from memexport.exporters.otel import OTelExporter

                exporters.append(OTelExporter(traces=self._otlp_traces))
            self._tracker = Tracker(exporters=exporters, step_at_optimizer=True, **options).start()
        except MemexportError as error:
            log.warning("memexport does not record: %s", error)
            return
        for url in filter(remote.is_url, self._outputs):
            self._report(f"{url} will be uploaded when the program is over; until then, see {live_copy(url)}")

    def stop(self, error: BaseException | None) -> None:
        """Complete the recording; `error` is what ended the program."""
        if self._tracker is not None:
            self._tracker.__exit__(type(error) if error is not None else None, error, None)

    def exceeded(self) -> list[str]:
        """A sentence for each device that ran out of its budget."""
        return self._tracker.exceeded() if self._tracker is not None else []


class _AfterTorch(MetaPathFinder):
    """Calls a function once, when `import torch` has been completed."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find torch as if we were not here, and act after it ran."""
        if fullname != "torch":
            return None
        self.remove()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then_act(module: types.ModuleType) -> None:
                execute(module)
                self._action()

            spec.loader.exec_module = execute_then_act  # type: ignore[method-assign]  # this loader is torch's alone
        return spec

    def run(self) -> None:
        """Act now: torch is there already."""
        self.remove()
        self._action()

    def remove(self) -> None:
        """Stop waiting."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def _check(output: str, *, overwrite: bool) -> None:
    registry.exporter_for(output)
    if remote.is_url(output):
        if not overwrite:
            remote.refuse_existing(output)
        return
    path = Path(output)
    if path.exists() and not overwrite:
        raise OutputError(path, None, "exists already", hint="--force replaces it")
    if not path.parent.is_dir():
        raise OutputError(path, None, "the folder does not exist", hint=f"mkdir -p {path.parent}")


def _check_opentelemetry() -> None:
    # Not by importing it, nor the exporter, which imports NumPy: the program may want to do so first.
    for package in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is not installed", hint="pip install 'memexport[otlp]'")


def _run_program(target: Sequence[str], *, as_module: bool, tracking: _Tracking) -> int:
    sys.argv = list(target)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    try:
        if as_module:
            sys.path[0] = str(Path.cwd())
            runpy._run_module_as_main(target[0])  # type: ignore[attr-defined]  # what python -m itself calls
        else:
            _run_script(target[0], main)
    except SystemExit as error:
        tracking.stop(None)
        return _exit_code(error)
    except BaseException as error:
        tracking.stop(error)
        _show(error)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    tracking.stop(None)
    return 0


def _run_script(script: str, main: types.ModuleType) -> None:
    path = Path(script).absolute()
    if path.suffix != ".py" and (path.is_dir() or _is_zip(path)):
        sys.path[0] = str(path)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # as python does
        return
    sys.path[0] = str(path.resolve().parent)
    main.__file__ = str(path)
    main.__loader__ = SourceFileLoader("__main__", str(path))
    main.__dict__["__cached__"] = None
    with io.open_code(str(path)) as stream:
        source = stream.read()
    code = compile(source, str(path), "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 - running the user's program is what this command is for


def _is_zip(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return 1


def _show(error: BaseException) -> None:
    """The traceback that python would have shown: without the frames of this module."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    sys.excepthook(type(error), error.with_traceback(traceback), traceback)
