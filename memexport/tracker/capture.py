"""Watches a process: a dispatch mode that is told of every operator, and hooks of modules and optimizers.

One row per event goes to a shared byte log (`rows`); what can be computed later is (`assemble`): counters,
phase spans, steps, peaks. Nothing here may raise into the user's program: a failure of ours stops the
capture, with one warning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memexport.model import Category
from memexport.tracker import compiled, rows
from memexport.tracker.claims import Claims
from memexport.tracker.details import Details
from memexport.tracker.dispatch import OperatorLog, detailed
from memexport.tracker.dispatch_mode import DispatchMode, pass_through
from memexport.tracker.inside import Inside
from memexport.tracker.other_threads import OtherThreads
from memexport.tracker.rows import Labels
from memexport.tracker.running import Running
from memexport.tracker.stamping import Stamps
from memexport.tracker.storages import (
    Storages,
    storage_of,
    tensor_bytes,
)
from memexport.tracker.survivors import Survivors
from memexport.tracker.threads import NO_TASK, graph_task
from memexport.tracker.trace_context import TraceReader

log = logging.getLogger("memexport")

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class Capture:
    """Watches one process from `start` to `stop` and appends rows to `log_bytes`.

    Attributes:
        labels: what the rows' codes and contexts stand for.
        log_bytes: the rows (`rows.ROW`). The drain thread takes them from the front.
        running: the modules and optimizers that are running.
        storages: what is alive, and on which devices.
        claims: says what storages are for.
        trace: looks for the OpenTelemetry span that is active.
        on_optimizer_step: called with an optimizer after its step.
        survivors: what was alive when it paused.
        on_error: called with an error that an operator raised, the operator's code and context, and when it
            ended.
        measures_calls: whether to log what goes into a module's call and what comes out of it.
        failed: the error that stopped the capture before its time, None if there was none.

    Args:
        inside: also measure what operators take inside, on the CPU.
        stamp: also say in CUDA's snapshots what made each allocation.
    """

    def __init__(
        self,
        labels: Labels,
        *,
        fake: bool,
        details: Details | None = None,
        inside: bool = False,
        stamp: bool = False,
    ) -> None:
        self.labels = labels
        self.log_bytes = bytearray()
        self.running = Running(labels, self.log_bytes.extend)
        self.storages = Storages(labels, self.running, self.log_bytes, fake=fake)
        self.claims = Claims(labels, self.running, self.storages, self.log_bytes)
        self.trace = TraceReader(labels, self.log_bytes.extend)
        self.on_optimizer_step: Callable[[torch.optim.Optimizer], None] | None = None
        self.on_error: Callable[[BaseException, int, int, int], None] | None = None
        self.measures_calls = True
        self.failed: Exception | None = None
        self._inside = Inside(self.running) if inside else None
        self._stamps = Stamps(labels, self.running) if stamp else None
        self._details = details
        self._mode = DispatchMode(pass_through)
        self._watching = False
        self._heeds_arguments = False
        self._other_threads: OtherThreads | None = None
        self._hooks: list[Any] = []
        self._step_hook: Any = None
        self._depth = 0
        self.survivors = Survivors(self.storages, self.running, self.log_bytes)

    # ---- life cycle

    def start(self) -> None:
        """Push the mode and register the hooks."""
        self._mode.call(self._whole_dispatch())
        self._watch()

    def pause(self) -> None:
        """Take the mode and the hooks away until `resume`.

        If `on_optimizer_step` is set, it is still called: recording may pause in that very hook, and torch
        goes through its hooks then, so that none may be removed.

        Must be called in the thread that called `start`.
        """
        self._watching = False
        self._depth = torch.utils._python_dispatch._get_current_dispatch_mode_stack().index(self._mode)
        self._unhook()
        if self.on_optimizer_step is None:
            self._forget_step_hook()
        self._remove_mode()
        self.survivors.keep()
        self.running.forget()

    def resume(self) -> None:
        """Go on after `pause`, in the same thread; modes that were pushed meanwhile stay above ours."""
        modes = torch.utils._python_dispatch
        above = []
        while len(modes._get_current_dispatch_mode_stack()) > self._depth:
            above.append(modes._pop_mode())
        self._watch()
        for mode in reversed(above):
            modes._push_mode(mode)

    def _watch(self) -> None:
        register, guarded = nn.modules.module, self._guarded
        self._hooks = [
            register.register_module_forward_pre_hook(guarded(self._module_starts)),
            register.register_module_forward_hook(
                guarded(self._module_ends), with_kwargs=True, always_call=True
            ),
            register.register_module_parameter_registration_hook(guarded(self._parameter_set)),
            register.register_module_buffer_registration_hook(guarded(self._buffer_set)),
            register_optimizer_step_pre_hook(guarded(self._optimizer_starts)),
        ]
        if self._step_hook is None:
            self._step_hook = register_optimizer_step_post_hook(self._guarded(self._optimizer_ends))
        self._watching = True
        self._other_threads = OtherThreads(self._mode)
        self.storages.watch_resizing(self.fail)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch's is not annotated

    def stop(self) -> None:
        """Take the mode and the hooks away, and forget every storage. Calling it twice does nothing."""
        was_watching, self._watching = self._watching, False
        self._silence()
        if not was_watching:
            return
        self._remove_mode()
        self.storages.live.clear()
        self.running.forget()

    def _remove_mode(self) -> None:
        """Take our mode off this thread's stack; a mode that was pushed after it and is still there stays."""
        modes = torch.utils._python_dispatch
        if self._mode not in modes._get_current_dispatch_mode_stack():
            log.warning("memexport was stopped in another thread than it was started in")
            return
        above = []
        while modes._get_current_dispatch_mode() is not self._mode:
            above.append(modes._pop_mode())
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's is not annotated
        for mode in reversed(above):
            modes._push_mode(mode)

    def _silence(self) -> None:
        self._forget_step_hook()
        self._unhook()
        self._mode.call(pass_through)

    def _forget_step_hook(self) -> None:
        if self._step_hook is not None:
            self._step_hook.remove()
        self._step_hook = None

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.storages.stop_watching_resizing()
        if self._other_threads is not None:
            self._other_threads.leave()
            self._other_threads = None

    def fail(self, error: Exception) -> None:
        """Stop recording because of an error of our own: one warning, and the program goes on."""
        if self.failed is None:
            self.failed = error
            self._silence()
            log.warning("memexport stopped recording: %r; the program goes on", error, exc_info=error)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        """The hook, but an error of ours in it stops the capture, not the program."""

        def guarded(*arguments: Any) -> None:
            if _is_compiling():  # torch.compile would take the hook for a part of the model
                return
            try:
                hook(*arguments)
            except Exception as error:
                self.fail(error)

        return guarded

    # ---- hooks

    def _module_starts(self, module: nn.Module, args: Any) -> None:
        thread = self.running.thread()
        if self._other_threads is not None:
            self._other_threads.module_starts()
        # In an optimizer's step too: Lightning, and LBFGS, run the forward from there.
        if graph_task() == NO_TASK and thread.caller() is None:
            self.trace.read(thread.context)
            self.claims.model(module, self.running.tree.enter(module, ()))
            self.claims.inputs(args)
        self.running.module_starts(module)

    def _module_ends(self, module: nn.Module, *told: Any) -> None:
        # Only this hook is told the keyword arguments, and only after a forward that did not raise.
        if len(told) == 3 and told[1] and graph_task() == NO_TASK and self.running.thread().is_outermost():
            self.claims.inputs(told[1])
        if self.claims.is_sharded:
            # Gathered by a hook of the module's own, which ran after ours; given back by one still to come.
            self.claims.gathered(module, self.running.thread().caller())
        if compiled.is_compiled(module) and told:
            self._came_out_of_compiled(told[-1])
        # Not told of its result, a module has raised.
        is_known = self.measures_calls and len(told) == 3
        self.running.module_ends(module, tensor_bytes(told) if is_known else None)
        if self._other_threads is not None:
            self._other_threads.module_ends()

    def _came_out_of_compiled(self, output: Any) -> None:
        for tensor in compiled.made(output):
            self._made_unseen(tensor, compiled.REGION)

    def _unseen_argument(self, argument: torch.Tensor) -> None:
        maker = compiled.maker_of(argument)
        for tensor in compiled.made(argument):
            self._made_unseen(tensor, maker)

    def _made_unseen(self, tensor: torch.Tensor, maker: str) -> None:
        storage = storage_of(tensor)
        if storage is None or id(storage) in self.storages.live:
            return
        thread, now = self.running.thread(), time.perf_counter_ns()
        device = self.storages.device_code(tensor.device)
        if device > 0:
            inside = self.labels.code(rows.SAMPLE, maker)
            self.storages.allocators.look(device, inside, thread.context, now)
        code = self.labels.code(rows.ALLOCATION, maker, Category.UNATTRIBUTED)
        self.storages.found(storage, tensor, code, thread.context, now, thread)

    def _parameter_set(self, _module: nn.Module, _name: str, parameter: torch.Tensor | None) -> None:
        if parameter is not None:
            self.claims.tensors([parameter], Category.PARAMETER, None)

    def _buffer_set(self, _module: nn.Module, _name: str, buffer: torch.Tensor | None) -> None:
        if buffer is not None:
            self.claims.tensors([buffer], Category.BUFFER, None)

    def _optimizer_starts(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.trace.read(self.running.thread().context)
        self.claims.gradients(optimizer)
        self.running.optimizer_starts()

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._watching:
            self.claims.optimizer(optimizer)
            self.running.optimizer_ends()
        if self.on_optimizer_step is not None:
            self.on_optimizer_step(optimizer)

    def step(self) -> None:
        """Log the end of a training step."""
        if not self._heeds_arguments and self._watching and compiled.has_own_kernels():
            self._mode.call(self._whole_dispatch())
        context = self.running.step_ends()
        self.trace.read(context)
        self.log_bytes.extend(rows.ROW.pack(rows.STEP, context, time.perf_counter_ns(), 0, 0))

    def mark(self, name: str) -> None:
        """Log a MARKER."""
        self.trace.read(self.running.thread().context)
        self._log_marker(name)

    def mark_error(self, name: str) -> None:
        """Log a MARKER of an error that has left all spans it was raised in: the last one known counts."""
        self._log_marker(name)

    def _log_marker(self, name: str) -> None:
        code = self.labels.code(rows.MARKER, name)
        context = self.running.thread().context
        self.log_bytes.extend(rows.ROW.pack(code, context, time.perf_counter_ns(), 0, 0))

    # ---- operators

    def _dispatch_function(self) -> Callable[..., Any]:
        """The function that runs for every operator."""
        log = OperatorLog(self.labels, self.running, self.storages, self.claims, self.log_bytes, self._inside)
        return log.dispatch_function(self._mode, self._raised, self.fail)

    def _whole_dispatch(self) -> Callable[..., Any]:
        """The same, with what else was asked for around it."""
        dispatch = self._dispatch_function()
        # Not where somebody else measures what the CPU takes, or nobody asks.
        self._heeds_arguments = self._inside is None or compiled.has_own_kernels()
        if self._inside is not None and self._heeds_arguments:
            dispatch = compiled.arguments_first(
                dispatch, self.storages.live, self._unseen_argument, self.fail
            )
        if self._stamps is not None:
            dispatch = self._stamps.around(dispatch, self.fail)
        if self._details is None:
            return dispatch
        return detailed(dispatch, self._details, self.running, self.log_bytes.extend, self.fail)

    def _raised(self, error: BaseException, operator_code: int, context: int, time_ns: int) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            self.trace.read(context, or_stay=True)  # the engine's threads are in no span
        if self.on_error is not None:
            self.on_error(error, operator_code, context, time_ns)
