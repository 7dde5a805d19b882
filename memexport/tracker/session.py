"""One stretch of recording, from start to stop: capture, assembly, summary and export put together."""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from memexport.analysis.summary import Summary, SummaryFold
from memexport.exporters import Exporter
from memexport.model import Device, EventBatch, RecordingEnd, Tables
from memexport.schedule import Schedule
from memexport.tracker import counters, dynamo
from memexport.tracker.alive import look_around
from memexport.tracker.assemble import START, Assembler
from memexport.tracker.capture import Capture
from memexport.tracker.details import Details
from memexport.tracker.estimation import Estimation
from memexport.tracker.exact_capture import ExactCapture
from memexport.tracker.exact_join import JoinedRows
from memexport.tracker.findings import Findings
from memexport.tracker.forked import stop_in_forked_child, stopped
from memexport.tracker.held import HeldRows, Ready
from memexport.tracker.levels import Levels
from memexport.tracker.oom.options import OomOptions
from memexport.tracker.oom.recorder import OomRecorder, Process, observe
from memexport.tracker.oom.request import is_oom, request_of
from memexport.tracker.oom.ring import Ring
from memexport.tracker.oom.rows import RequestLog
from memexport.tracker.process import describe_process
from memexport.tracker.registration import Registration
from memexport.tracker.rows import Labels
from memexport.tracker.stream import DrainThread, ExportThread
from memexport.tracker.windows import Windows

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
        exact: take what is allocated, on the CPU and one CUDA device, from the allocator's own record.
        simulation: what the program runs on, if we simulate it.
        schedule: which steps are recorded in detail; None: all.
        oom: what to do when memory runs out.
        annotate_snapshots: let CUDA's own snapshots say what made each allocation.

    Attributes:
        step: called when a training step ends.
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
        schedule: Schedule | None = None,
        oom: OomOptions | None = None,
        annotate_snapshots: bool = False,
    ) -> None:
        self._fake = fake
        # Looking for tensors takes a while (all of Python's objects are looked at): before the clock starts.
        # Nothing of what is simulated from here on lives already.
        self._others = [] if simulation is not None else look_around(fake=fake).tensors
        self._pid = os.getpid()
        self._tables = Tables()
        self._labels = Labels(self._tables)
        detailed = shapes or stacks
        details = Details(self._tables, shapes=shapes, stacks=stacks) if detailed else None
        self._is_ring_alone = oom is not None and oom.is_alone
        inside = not fake and not exact and not self._is_ring_alone
        make_capture = ExactCapture if exact else Capture
        self._capture = make_capture(
            self._labels, fake=fake, details=details, inside=inside, stamp=annotate_snapshots
        )
        self._registration = Registration(self._capture, fake=fake)
        options: dict[str, object] = {"flush_interval": flush_interval, "fake": fake}
        options |= {"capture": "allocator" if exact else "operators"}
        options |= {"record_shapes": shapes, "record_stacks": stacks}
        options |= {} if simulation is None else simulation.options.as_text()
        options |= {} if schedule is None else schedule.as_text()
        options |= {} if oom is None else {"oom_events": oom.events}
        self._info = describe_process(options)
        self._estimation = Estimation(simulation, self._info, self._tables) if simulation else None
        self._fold = SummaryFold(self._info, self._tables)
        self._levels = Levels(self._info.devices, self._tables.strings)
        make_assembler = functools.partial(
            Assembler,
            self._labels,
            clock_offset_ns=time.time_ns() - time.perf_counter_ns(),
            rank=-1 if self._info.rank is None else self._info.rank,
            has_counters=lambda index: self._capture.storages.allocators.readers[index] is not None,
            details=detailed,
        )
        self._assembler = make_assembler()
        held = HeldRows(self._labels, int(flush_interval * 1e9))
        number = self._capture.storages.next_number
        self._held = JoinedRows(held, self._labels, number) if exact else held
        self._export = ExportThread(exporters)
        self._findings = Findings(self._capture, self._export, fake=fake)
        self._drain = DrainThread(self._capture.log_bytes, self._take, flush_interval)
        self._windows = None
        if schedule is not None:
            self._windows = Windows(schedule, self._capture, self._drain, self._registration.again)
        # No method: outside of a window this call is all that a step costs.
        self.step: Callable[[], None] = (self._windows or self._capture).step
        self._assembling = threading.Lock()
        self._folding = threading.Lock()
        self._stopping = False
        self._ooms = 0
        self._oom = None if oom is None else self._oom_recorder(oom, make_assembler, details=detailed)
        self._leading_optimizer: weakref.ref[torch.optim.Optimizer] | None = None

    def _oom_recorder(
        self, oom: OomOptions, make_assembler: Callable[..., Assembler], *, details: bool
    ) -> OomRecorder:
        def resumed(first_step: int, step_began: int | None) -> Assembler:
            return make_assembler(first_step=first_step, step_began=step_began)

        def end() -> RecordingEnd:
            with self._folding:
                return self._end(is_all_read=False)

        process = Process(self._capture, self._info, self._tables, resumed, self._drain.flush, end)
        recorder = OomRecorder(oom.to, Ring(self._labels, oom.events, details=details), process)
        self._capture.on_error = recorder.raised
        self._capture.trace.reads_boundaries = not oom.is_alone  # it would intern a text for each span
        self._capture.measures_calls = not oom.is_alone  # nothing that a report says of an OOM
        return recorder

    def start(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        step_at_optimizer: bool,
    ) -> None:
        """Open the outputs, log what lives already, and begin to watch.

        Raises:
            OutputError: an output cannot be opened, or a recording of an OOM could not be written; nothing is
                left running.
        """
        if self._oom is not None:
            self._oom.check()
        self._export.begin(self._info, self._tables, self._end)
        self._registration.first(modules, optimizers, self._others)
        self._others.clear()
        self._capture.storages.sample()
        self._capture.mark(START)
        if step_at_optimizer:
            self._capture.on_optimizer_step = self._optimizer_stepped
        stop_in_forked_child(self._capture)
        dynamo.keep_out()
        self._drain.start()
        self._capture.start()
        if self._windows is not None:
            self._windows.start()

    def stop(self) -> None:
        """Stop watching, write what is left, complete the outputs."""
        self._read_counters()
        if self._windows is not None:
            self._windows.stop()
        self._capture.stop()
        stopped(self._capture)
        if os.getpid() != self._pid:
            return  # a forked child: the files are its parent's
        self._stopping = True
        self._drain.stop()
        self._take_rest()
        self._handle(lambda: self._assembler.last_batch(time.perf_counter_ns()))
        self._export.end(self._end)

    def mark(self, name: str) -> None:
        """Put a MARKER here."""
        self._capture.mark(name)

    def mark_error(self, error: BaseException) -> None:
        """Put a MARKER here: an error ends the recording."""
        if self._oom is not None and is_oom(error):
            self._look_again()
            self._oom.leaves(error)
        elif is_oom(error):
            self._ooms += 1
            RequestLog(self._capture).log_end(request_of(error))
        else:
            self._capture.mark_error(f"exception: {type(error).__name__}")

    def summary(self) -> Summary:
        """Everything until now, summed up."""
        self._catch_up()
        with self._folding:
            return self._whole().result(self._end())

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
        self._read_counters()
        self._catch_up()
        with self._folding:
            return self._whole().usage(when)

    def take_peak(self) -> dict[str, int]:
        """Bytes allocated at most, per device, since the last call."""
        self._catch_up()
        with self._folding:
            return self._levels.take()

    def _read_counters(self) -> None:
        """Since an accelerator's last operator, something may have been released there."""
        is_paused = self._windows is not None and self._windows.is_paused
        if self._stopping or is_paused or os.getpid() != self._pid:
            return
        try:
            self._capture.storages.sample()
        except Exception as error:
            self._capture.fail(error)

    def _whole(self) -> SummaryFold:
        """Everything, or, where only a ring is kept, what is in that."""
        return self._oom.fold() if self._oom is not None and self._is_ring_alone else self._fold

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
            if self._oom is not None:
                observe(device)
        if self._oom is not None:
            self._oom.ring.add(chunk)
        if not self._is_ring_alone:
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
                self._levels.add(batch)
        except Exception as error:
            self._capture.fail(error)
        else:
            self._export.put(batch, wait=self._stopping)

    def _end(self, *, is_all_read: bool = True) -> RecordingEnd:
        """What the end would say now; unless `is_all_read`, the highest reading may be to come."""
        highest = {name: bytes_["total"] for name, bytes_ in self._fold.usage("peak").items()}
        ooms = self._ooms if self._oom is None else self._oom.ooms
        pauses = [] if self._windows is None else self._windows.warnings()
        end = self._findings.end(highest, ooms, pauses, is_all_read=is_all_read)
        if self._oom is not None and self._is_ring_alone:
            end = self._oom.end(end)
        return end if self._estimation is None else self._estimation.complete(end)

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if self._leading_optimizer is None or self._leading_optimizer() is None:
            self._leading_optimizer = weakref.ref(optimizer)
        if self._leading_optimizer() is optimizer:
            self.step()

    def _look_again(self) -> None:
        """In a pause, log what died and what was made since recording paused."""
        if self._windows is None or not self._windows.is_paused:
            return
        try:
            self._capture.survivors.give_back()
            self._registration.again()
        except Exception as error:
            self._capture.fail(error)
