"""Live capture: the one package, with `compat` and `integrations`, that imports torch."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn

import torch
from torch import nn

from memexport import registry
from memexport.analysis.summary import Summary
from memexport.errors import UsageError
from memexport.ranks import filled, this_process
from memexport.schedule import Schedule
from memexport.tracker import exact_record, stamping
from memexport.tracker.fake_options import FakeOptions, budget_bytes
from memexport.tracker.oom.options import OnOom, OomOptions
from memexport.tracker.outputs import archive_limit, exporters_to
from memexport.tracker.session import Session

if TYPE_CHECKING:
    from memexport.exporters import Exporter
    from memexport.tracker.fake import Simulation


class Tracker:
    """Records what a training run does with memory, operator by operator, while it runs.

    ```python
    with memexport.Tracker(model, optimizer=optimizer, exporters=["run.memx"]) as tracker:
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.step()
    print(tracker.summary())
    ```

    Works on the CPU, under `FakeTensorMode` and on accelerators, whose own counters are read. It never
    changes what the program computes, and never raises into it: if an exporter fails, or memexport itself
    does, there is one warning and training goes on. Records the thread that starts it, the autograd
    engine's threads, and modules that run in other threads.

    Args:
        modules: the models whose parameters and buffers are known by name from the start. Modules that are
            not given are met when they are first called.
        optimizer: an optimizer, or several, whose state is registered at the start. Any optimizer's `step`
            is recognised, given or not.
        exporters: where to write while recording: paths (the suffix says the format; an existing file is
            replaced) or objects like `memexport.exporters.Exporter`. None at all is fine: `summary` works.
            What goes to a URL is a temporary file here until `stop` uploads it, and stays one if that fails.
            In a path, `{rank}`, `{local_rank}`, `{host}` and `{pid}` are replaced by what this process is
            when it starts to record; where there are several and none of these, the rank is put in.
        flush_interval: seconds between writes. An event waits up to as long again, until its forward or
            backward is over and it is known what was temporary; so twice this may be lost when the process
            is killed.
        step_at_optimizer: end a step after each `step()` of the first optimizer that runs, for programs that
            cannot call `tracker.step()`.
        record_shapes: also record dtype and shape of each operator's tensor arguments.
        record_stacks: also record the Python code that called each operator and made each allocation,
            without the frames inside torch. Both cost time.
        capture: what is taken for allocated on the CPU. "operators": what operators return, for as long as
            it lives; what one uses inside, and has given back when it returns, is measured in the first
            calls and shown as unattributed in those and later ones like them. "allocator": all that the
            allocator gave, from its own record, so that peaks are right to the byte; recording costs about
            twice the time. It needs the thread's profiler: no `torch.profiler` may be on, and
            starting one meanwhile fails. An accelerator's counters are its allocator's own either way, and
            so is its highest moment, also inside an operator; "allocator" adds all other moments there, on
            one CUDA device. Beside accelerators other than CUDA's and MPS, torch cannot keep that record.
        fake: run the program on simulated tensors from `start` to `stop`: they take no memory, and nothing is
            computed. Make the model inside.
        device: with `fake`, "cuda" simulates CUDA devices too, there or not, and estimates what their caching
            allocator would allocate and reserve. A program that never speaks of CUDA runs on one as a whole.
        world_size: with `fake`, let the program be the first rank of a job of so many.
        budget: with `fake`, the memory that the device has: bytes, or "80GiB". Where it would run out, a
            MARKER "out of budget" says so, and the summary's warnings.
        fake_value: with `fake`, what `loss.item()` gives.
        on_oom: what to do when memory runs out (a `torch.OutOfMemoryError`, a `MemoryError`, or the CPU
            allocator's RuntimeError), also where the program handles the error. A folder or file to write the
            last events to, with all that lived (see `exporters` for placeholders), or a function that gets
            a report. The error gets a note that sums it up, and goes on unchanged. Without exporters, nothing
            else is recorded: that costs less, and `summary` is of the last events. If None, the environment
            variable MEMEXPORT_OOM may name a folder or file. Not with `fake` or capture="allocator".
        oom_events: with `on_oom`, how many events at least are kept in memory, of 32 bytes each and a
            little more.
        every: record one `window` of steps in so many, beginning with step 0; of the others only when they
            ended, and what an accelerator's allocator then says. In between nothing else is done. Not
            together with `fake` or capture="allocator".
        window: with `every`, how many steps are recorded one after another; 1 if not given.
        steps: record only steps from the first number (from 0) up to but without the second; or several such
            pairs. `every` counts from the first of each.
        max_bytes: how large each archive (.memx) may become: bytes, or "100MiB". It keeps the first and the
            last of the recording; what is left out in the middle is counted.
        annotate_snapshots: while an operator runs, let torch keep its name, module and phase with the CUDA
            memory that it takes: a snapshot of `torch.cuda.memory` then says them, and memexport reads them
            from it. What `torch.cuda.memory._set_memory_metadata` was given holds outside of operators.

    Raises:
        UsageError: no format fits a path, or it has another placeholder; `capture` is neither; or what needs
            `fake` comes without it.
        OutputError: an output cannot be opened (when recording starts).
    """

    def __init__(
        self,
        *modules: nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        exporters: Sequence[str | os.PathLike[str] | Exporter] = (),
        flush_interval: float = 1.0,
        step_at_optimizer: bool = False,
        record_shapes: bool = False,
        record_stacks: bool = False,
        capture: Literal["operators", "allocator"] = "operators",
        fake: bool = False,
        device: Literal["cpu", "cuda"] | None = None,
        world_size: int | None = None,
        budget: int | str | None = None,
        fake_value: float = 1.0,
        every: int | None = None,
        window: int | None = None,
        steps: tuple[int, int] | Sequence[tuple[int, int]] | None = None,
        max_bytes: int | str | None = None,
        on_oom: OnOom | None = None,
        oom_events: int = 200_000,
        annotate_snapshots: bool = False,
    ) -> None:
        if flush_interval <= 0:
            raise UsageError(f"flush_interval is {flush_interval}, but must be more than 0 seconds")
        if isinstance(exporters, (str, os.PathLike)):
            raise UsageError("exporters is a list", hint=f"exporters=[{os.fspath(exporters)!r}]")
        if capture not in ("operators", "allocator"):
            raise UsageError(f"capture={capture!r} is not known", hint='"operators" or "allocator"')
        self._modules = [weakref.ref(module) for module in modules]
        given = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer or ())
        self._optimizers = [weakref.ref(one) for one in given]
        self._outputs = list(exporters)
        for output in self._outputs:
            if isinstance(output, (str, os.PathLike)):
                registry.exporter_for(output)
                filled(os.fspath(output), this_process())
        self._flush_interval = flush_interval
        self._step_at_optimizer = step_at_optimizer
        self._record_shapes = record_shapes
        self._record_stacks = record_stacks
        self._is_exact = capture == "allocator"
        self._annotate_snapshots = annotate_snapshots
        if not fake and (device, world_size, budget) != (None, None, None):
            raise UsageError("device, world_size and budget are of a simulation", hint="fake=True")
        if fake and self._is_exact:
            raise UsageError('capture="allocator" asks an allocator, and a simulation has none')
        options = FakeOptions(device, world_size, budget_bytes(budget), fake_value)
        self._fake = options if fake else None
        self._max_bytes = archive_limit(max_bytes, self._outputs)
        self._schedule = Schedule.of(every, window, steps)
        if self._schedule is not None and (fake or self._is_exact):
            _refuse_schedule(fake=fake)
        self._oom = OomOptions.of(
            on_oom, oom_events, is_alone=not self._outputs, is_possible=not (fake or self._is_exact)
        )
        self._simulation: Simulation | None = None
        self._running: Session | None = None
        self._finished: Session | None = None

    def start(self) -> Tracker:
        """Begin to record. The same tracker can record again after `stop`, if its exporters can.

        Raises:
            UsageError: it is recording already; or `capture` is "allocator", and a torch profiler is on,
                tensors are simulated, or this torch does not give its allocator's record; or
                `annotate_snapshots` is set, and no allocation here can keep a text.
            OutputError: an output cannot be opened.
        """
        if self._running is not None:
            raise UsageError("this tracker is recording already")
        # A simulated rank is not one of several processes that could write to one file.
        exporters = exporters_to(self._outputs, self._max_bytes)
        self._simulation = _started(self._fake) if self._fake is not None else None
        try:
            self._running = self._finished = self._recording_started(exporters)
        except BaseException:
            self._stop_simulation()
            raise
        return self

    def _recording_started(self, exporters: Sequence[Exporter]) -> Session:
        modules = [module for ref in self._modules if (module := ref()) is not None]
        optimizers = [optimizer for ref in self._optimizers if (optimizer := ref()) is not None]
        is_simulated = self._simulation is not None or _is_simulated(modules)
        if self._is_exact:
            exact_record.require(is_simulated=is_simulated)
        if self._annotate_snapshots:
            stamping.require(is_simulated=is_simulated)
        recording = Session(
            exporters,
            self._flush_interval,
            fake=is_simulated,
            shapes=self._record_shapes,
            stacks=self._record_stacks,
            exact=self._is_exact,
            simulation=self._simulation,
            schedule=self._schedule,
            oom=self._oom,
            annotate_snapshots=self._annotate_snapshots,
        )
        recording.start(modules, optimizers, step_at_optimizer=self._step_at_optimizer)
        if self._simulation is not None:
            self._simulation.counters = recording.estimated
        return recording

    def _stop_simulation(self) -> None:
        if self._simulation is not None:
            self._simulation.stop()

    def stop(self) -> None:
        """Stop recording, write what is left and complete every output. Calling it twice does nothing.

        Afterwards the process is as before: no hook, no mode, no thread is left.
        """
        recording, self._running = self._running, None
        if recording is not None:
            recording.stop()
            self._stop_simulation()

    def __enter__(self) -> Tracker:
        return self.start()

    def __exit__(self, _type: type[BaseException] | None, exc: BaseException | None, _tb: object) -> None:
        if self._running is not None and exc is not None:
            self._running.mark_error(exc)
        self.stop()

    def step(self) -> None:
        """A training step ends here, and the next one begins. Does nothing when not recording."""
        if self._running is not None:
            self._running.step()

    def mark(self, name: str) -> None:
        """Put a MARKER with this name here. Does nothing when not recording."""
        if self._running is not None:
            self._running.mark(name)

    def summary(self) -> Summary:
        """What has been recorded until now, summed up: `print` it, or take `.to_dict()`.

        Raises:
            UsageError: nothing has been recorded.
        """
        return self._recording().summary()

    def usage(self, when: str = "current") -> dict[str, dict[str, int]]:
        """Bytes per device and category, and their "total": "current", or at the "peak" of each device.

        Raises:
            UsageError: nothing has been recorded, or `when` is neither.
        """
        if when not in ("current", "peak"):
            raise UsageError(f"usage of {when!r} is not known", hint='"current" or "peak"')
        return self._recording().usage(when)

    def take_peak(self) -> dict[str, int]:
        """Bytes allocated at most on each device since the last call (first: since the start).

        Called after each step, it gives the peak of each step; what is allocated when an interval begins
        counts in it. Devices of which nothing is known are left out.

        Raises:
            UsageError: nothing has been recorded.
        """
        return self._recording().take_peak()

    def exceeded(self) -> list[str]:
        """A sentence for each device that ran out of the budget, saying where; empty if none did.

        Raises:
            UsageError: nothing has been recorded.
        """
        return self._recording().exceeded()

    def _recording(self) -> Session:
        if self._finished is None:
            raise UsageError("nothing has been recorded yet", hint="tracker.start()")
        return self._finished


def _refuse_schedule(*, fake: bool) -> NoReturn:
    if fake:
        raise UsageError("every and steps leave events out, and a simulated allocator needs every one")
    raise UsageError(
        'every and steps leave out what capture="allocator" needs: all that the allocator gave and took',
        hint='capture="operators"',
    )


def _started(options: FakeOptions) -> Simulation:
    # It imports parts of torch that take a while, and that nothing else here needs.
    from memexport.tracker.fake import Simulation

    simulation = Simulation(options)
    simulation.start()
    return simulation


def _is_simulated(modules: Sequence[nn.Module]) -> bool:
    """Whether tensors take no memory: a FakeTensorMode is active, or a model was made under one."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is None:
        return False
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return True
    return any(isinstance(p, fake.FakeTensor) for module in modules for p in module.parameters())
