"""One stretch of recording, from start to stop: capture, assembly, summary and export put together."""

from __future__ import annotations

import functools
import gc
import os
import platform
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import memexport
from memexport.analysis.summary import Summary, SummaryFold
from memexport.exporters import Exporter
from memexport.model import Category, Device, EventBatch, RecordingEnd, RecordingInfo, Tables
from memexport.tracker import counters
from memexport.tracker.assemble import OOM, START, Assembler
from memexport.tracker.capture import Capture
from memexport.tracker.coverage import PeakCoverage
from memexport.tracker.details import Details
from memexport.tracker.estimation import Estimation
from memexport.tracker.exact_capture import ExactCapture
from memexport.tracker.exact_join import JoinedRows
from memexport.tracker.held import HeldRows, Ready
from memexport.tracker.rows import Labels
from memexport.tracker.stream import DrainThread, ExportThread

if TYPE_CHECKING:
    from memexport.tracker.fake import Simulation


class Session:
    """What a `Tracker` runs between `start` and `stop`; its summary can still be asked for afterwards.

    Args:
        exporters: where batches go; they are used up.
        flush_interval: seconds between writes.
        fake: tensors are simulated: they take no memory, and no real allocator is asked.
        shapes: record each operator's tensor arguments.
        stacks: record the Python stack of each operator and allocation.
        exact: take what is allocated on the CPU from the allocator's own record.
        simulation: what the program runs on, if we simulate it.
    """

    def __init__(
        self,
        exporters: Sequence[Exporter],
        flush_interval: float,
        *,
        fake: bool,
        shapes: bool = False,
        stacks: bool = False,
        exact: bool = False,
        simulation: Simulation | None = None,
    ) -> None:
        self._fake = fake
        # Looking for tensors takes a while (all of Python's objects are looked at): before the clock starts.
        # Nothing of what is simulated from here on lives already.
        self._others = [] if simulation is not None else list(_tensors_alive(fake=fake))
        self._pid = os.getpid()
        self._tables = Tables()
        self._labels = Labels(self._tables)
        detailed = shapes or stacks
        details = Details(self._tables, shapes=shapes, stacks=stacks) if detailed else None
        self._capture = (ExactCapture if exact else Capture)(self._labels, fake=fake, details=details)
        options: dict[str, object] = {"flush_interval": flush_interval, "fake": fake}
        options |= {"capture": "allocator" if exact else "operators"}
        options |= {"record_shapes": shapes, "record_stacks": stacks}
        options |= {} if simulation is None else simulation.options.as_text()
        self._info = _describe_process(options)
        self._estimation = Estimation(simulation, self._info, self._tables) if simulation else None
        self._fold = SummaryFold(self._info, self._tables)
        self._assembler = Assembler(
            self._labels,
            clock_offset_ns=time.time_ns() - time.perf_counter_ns(),
            rank=-1 if self._info.rank is None else self._info.rank,
            has_counters=lambda index: self._capture.storages.readers[index] is not None,
            details=detailed,
        )
        held = HeldRows(self._labels, int(flush_interval * 1e9))
        number = self._capture.storages.next_number
        self._held = JoinedRows(held, self._labels, number) if exact else held
        self._coverage = PeakCoverage()
        self._export = ExportThread(exporters)
        self._drain = DrainThread(self._capture.log_bytes, self._take, flush_interval)
        self._assembling = threading.Lock()
        self._folding = threading.Lock()
        self._stopping = False
        self._ooms = 0
        self._leading_optimizer: weakref.ref[torch.optim.Optimizer] | None = None

    def start(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        step_at_optimizer: bool,
    ) -> None:
        """Open the outputs, log what lives already, and begin to watch.

        Raises:
            OutputError: an output cannot be opened; nothing is left running.
        """
        self._export.begin(self._info, self._tables, self._end)
        self._register_models(modules)
        self._register_optimizers(optimizers)
        self._capture.claims.tensors(self._others, Category.UNATTRIBUTED, None)
        self._others.clear()
        self._capture.storages.sample()
        self._capture.mark(START)
        if step_at_optimizer:
            self._capture.on_optimizer_step = self._optimizer_stepped
        stop_in_forked_child(self._capture)
        self._drain.start()
        self._capture.start()

    def stop(self) -> None:
        """Stop watching, write what is left, complete the outputs."""
        self._capture.stop()
        _watched.discard(self._capture)
        if os.getpid() != self._pid:
            return  # a forked child: the files are its parent's
        self._stopping = True
        self._drain.stop()
        self._take_rest()
        self._handle(lambda: self._assembler.last_batch(time.perf_counter_ns()))
        self._export.end(self._end)

    def step(self) -> None:
        """A training step ends."""
        self._capture.step()

    def mark(self, name: str) -> None:
        """Put a MARKER here."""
        self._capture.mark(name)

    def mark_error(self, error: type[BaseException]) -> None:
        """Put a MARKER here: an error ends the recording."""
        is_oom = issubclass(error, torch.OutOfMemoryError)
        self._ooms += is_oom
        self._capture.mark_error(OOM if is_oom else f"exception: {error.__name__}")

    def summary(self) -> Summary:
        """Everything until now, summed up."""
        self._catch_up()
        with self._folding:
            return self._fold.result(self._end())

    def exceeded(self) -> list[str]:
        """A sentence for each device that ran out of its budget."""
        self._catch_up()
        return list(self._estimation.exceeded()) if self._estimation else []

    def estimated(self) -> Mapping[str, int]:
        """What the simulated accelerator's allocator says now; see `fake_cuda.Counters`."""
        self._catch_up()
        return self._estimation.counters() if self._estimation else {}

    def usage(self, when: str) -> dict[str, dict[str, int]]:
        """Bytes per device and category, "current" or at the "peak"."""
        self._catch_up()
        with self._folding:
            return self._fold.usage(when)

    def _catch_up(self) -> None:
        if not self._stopping and os.getpid() == self._pid:
            if isinstance(self._capture, ExactCapture):
                self._capture.record.drain()
            self._drain.flush()
            self._take_rest()

    def _take(self, chunk: bytes) -> None:
        """Runs in the drain thread, or in whichever flushes."""
        for device in self._capture.storages.devices[len(self._info.devices) :]:
            self._info.devices.append(
                Device(device.type, device.index) if self._fake else counters.describe(device)
            )
        self._assemble(lambda: self._held.add(chunk))

    def _take_rest(self) -> None:
        """What waits for its forward or backward to be over waits no longer."""
        self._assemble(self._held.rest)

    def _assemble(self, rows: Callable[[], Iterator[Ready]]) -> None:
        with self._assembling:
            try:
                found = list(rows())
            except Exception as error:
                self._capture.fail(error)
                return
            for ready in found:
                self._handle(functools.partial(self._assembler.batch, ready.rows, complete=ready.complete))

    def _handle(self, make_batch: Callable[[], EventBatch]) -> None:
        """Sum a batch up and pass it on; an error of ours must reach neither the program nor the thread."""
        try:
            batch = make_batch()
            if self._estimation is not None:
                batch = self._estimation.apply(batch)
            with self._folding:
                self._fold.add(batch)
        except Exception as error:
            self._capture.fail(error)
        else:
            self._export.put(batch, wait=self._stopping)

    def _end(self) -> RecordingEnd:
        warnings = list(self._export.failures)
        if self._capture.failed is not None:
            warnings.append(f"recording stopped before the program did: {self._capture.failed!r}")
        real = [] if self._fake else self._capture.storages.devices
        highest = {name: bytes_["total"] for name, bytes_ in self._fold.usage("peak").items()}
        warnings += self._coverage.warnings(real, highest)
        retries, ooms = counters.retries_and_ooms(real)
        ooms = max(ooms or 0, self._ooms) if self._ooms else ooms
        end = RecordingEnd(tuple(warnings), self._export.dropped_events, retries, ooms)
        return end if self._estimation is None else self._estimation.complete(end)

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if self._leading_optimizer is None or self._leading_optimizer() is None:
            self._leading_optimizer = weakref.ref(optimizer)
        if self._leading_optimizer() is optimizer:
            self._capture.step()

    # ---- what lives before the start

    def _register_models(self, modules: Sequence[nn.Module]) -> None:
        for root in modules:
            self._capture.claims.model(root, self._capture.running.tree.add_root(root))
            for parameter in root.parameters():
                if parameter.grad is not None:
                    owner = self._capture.running.tree.owner_of_parameter(parameter)
                    self._capture.claims.tensors([parameter.grad], Category.GRADIENT, owner)

    def _register_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        for optimizer in optimizers:
            self._capture.claims.optimizer(optimizer)


def _tensors_alive(*, fake: bool) -> Iterator[torch.Tensor]:
    """Every tensor that Python knows of: the simulated ones, or those that are not."""
    fake_tensor = sys.modules.get("torch._subclasses.fake_tensor")
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), torch.Tensor):
            continue
        if is_traceable_wrapper_subclass(candidate):
            continue  # it has no memory, those in it have
        is_fake = fake_tensor is not None and isinstance(candidate, fake_tensor.FakeTensor)
        if is_fake == fake:
            yield candidate


_watched: weakref.WeakSet[Capture] = weakref.WeakSet()


def stop_in_forked_child(capture: Capture) -> None:
    """A process that is forked from this one does not go on to watch."""
    _watched.add(capture)


def _forget_in_child() -> None:
    """A forked process (a DataLoader worker) has no drain thread: what it logged would only pile up."""
    for capture in list(_watched):
        capture.stop()
        capture.log_bytes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _describe_process(options: Mapping[str, object]) -> RecordingInfo:
    return RecordingInfo(
        producer="memexport",
        producer_version=memexport.__version__,
        start_time_unix_ns=time.time_ns(),
        host=socket.gethostname(),
        pid=os.getpid(),
        rank=_integer_variable("RANK"),
        local_rank=_integer_variable("LOCAL_RANK"),
        world_size=_integer_variable("WORLD_SIZE"),
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        command_line=tuple(getattr(sys, "orig_argv", sys.argv)),
        options={name: str(value).lower() for name, value in options.items()},
    )


def _integer_variable(name: str) -> int | None:
    value: Any = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
