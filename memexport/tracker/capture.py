"""The hot path: what runs inside the user's training loop for every operator, storage and module call.

Everything here is written to be short at run time. One row per event goes to a shared byte log (`rows`); what
can be computed later is (`assemble`): counters, phase spans, steps, peaks. Nothing here may raise into the
user's program: a failure of ours stops the capture, with one warning.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from memexport.model import Category, Phase
from memexport.tracker import counters, rows
from memexport.tracker.details import Details
from memexport.tracker.modules import ModuleNode, nodes_below
from memexport.tracker.rows import DEVICE_UNIT, Labels
from memexport.tracker.running import NO_TASK, Running, Thread, graph_task

log = logging.getLogger("memexport")

_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_RELEASE_AFTER_ALLOCATION = rows.RELEASE - rows.ALLOCATION
_CATEGORY_AFTER_RELEASE = rows.CATEGORY - rows.RELEASE
# Who may say what a storage is for: a higher one overrules a lower one.
_CLAIMS = {
    int(category): place
    for place, category in enumerate(
        (
            Category.INPUT,
            Category.GRADIENT,
            Category.OPTIMIZER_STATE,
            Category.BUFFER,
            Category.PARAMETER,
        ),
        1,
    )
}
_WATCHED = ("aten.resize", "aten.set_", "aten.detach", "aten.clone")


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a live storage, and what its RELEASE row will say."""

    __slots__ = ("device", "placed", "release", "size")

    device: int
    size: int
    release: tuple[int, int, int]
    """Its key in `Capture.live_storages`, the row's code, the storage's number."""
    placed: bool
    """Whether its module was logged; not set, to save time, while nobody claimed it."""


class _Operator:
    """What is the same for every call of an operator."""

    __slots__ = ("allocation_code", "call", "code", "function", "watched")

    def __init__(self, function: Any, labels: Labels) -> None:
        name = str(function)
        self.function = function  # keeps its id from being used again
        # What OpOverload.__call__ calls: a Python frame less, 0.25 µs.
        self.call = function._op if type(function) is torch._ops.OpOverload else function
        # A simulated tensor's `.device` is asked through the dispatcher, as prim.device; profiler annotations
        # come that way too. Neither works on memory.
        ignored = name.startswith(("prim.", "profiler."))
        self.code = labels.code(rows.IGNORED if ignored else rows.OPERATOR, name)
        self.allocation_code = labels.code(rows.ALLOCATION, name, Category.UNATTRIBUTED)
        # What may change a storage's size, and what makes a gradient a parameter's.
        self.watched = name.startswith(_WATCHED) or "out" in name.rpartition(".")[2]


class _DispatchMode(TorchDispatchMode):
    """Calls the function it was given for every operator."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` work as without us; what runs inside a compiled region is not seen."""
        return True

    def __init__(self, dispatch: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's is not annotated
        self.call(dispatch)

    def call(self, dispatch: Callable[..., Any]) -> None:
        """Call this function, with the mode as its first argument, from now on."""
        # On the instance: the dispatcher finds it there without the wrapper that torch puts around a class's
        # (0.6 µs per operator), and it can be replaced.
        self.__torch_dispatch__ = types.MethodType(dispatch, self)  # type: ignore[method-assign]  # see above


def _pass_through(
    _mode: _DispatchMode, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
) -> Any:
    return func(*args, **(kwargs or {}))


class Capture:
    """Watches one process from `start` to `stop` and appends rows to `log_bytes`.

    Attributes:
        labels: what the rows' codes and contexts stand for.
        log_bytes: the rows (`rows.ROW`). The drain thread takes them from the front.
        devices: torch's devices in the order of the column `device`.
        running: the modules and optimizers that are running.
        live_storages: by id, what is alive.
        on_optimizer_step: called with an optimizer after its step.
        failed: the error that stopped the capture before its time, None if there was none.
    """

    def __init__(self, labels: Labels, *, fake: bool, details: Details | None = None) -> None:
        self.labels = labels
        self.log_bytes = bytearray()
        self.devices: list[torch.device] = [torch.device("cpu")]
        self.device_readers: list[counters.Reader | None] = [None]
        self.running = Running(labels, self.log_bytes.extend)
        self.live_storages: dict[int, _StorageRef] = {}
        self.on_optimizer_step: Callable[[torch.optim.Optimizer], None] | None = None
        self.failed: Exception | None = None
        self._fake = fake
        self._operators: dict[int, _Operator] = {}
        self._next_number = itertools.count(1).__next__
        self._growing = threading.RLock()
        self._released = self._release_function()
        dispatch = self._dispatch_function()
        self._mode = _DispatchMode(dispatch if details is None else self._detailed(dispatch, details))
        self._watching = False
        self._hooks: list[Any] = []

    # ---- life cycle

    def start(self) -> None:
        """Push the mode and register the hooks."""
        register, guarded = nn.modules.module, self._guarded
        self._hooks = [
            register.register_module_forward_pre_hook(guarded(self._module_starts)),
            register.register_module_forward_hook(
                guarded(self._module_ends), with_kwargs=True, always_call=True
            ),
            register.register_module_parameter_registration_hook(guarded(self._parameter_set)),
            register.register_module_buffer_registration_hook(guarded(self._buffer_set)),
            register_optimizer_step_pre_hook(guarded(self._optimizer_starts)),
            register_optimizer_step_post_hook(guarded(self._optimizer_ends)),
        ]
        self._watching = True
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch's is not annotated

    def stop(self) -> None:
        """Take the mode and the hooks away, and forget every storage. Calling it twice does nothing."""
        if not self._watching:
            return
        self._watching = False
        self._silence()
        self._remove_mode()
        self.live_storages.clear()
        self._operators.clear()
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
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._mode.call(_pass_through)

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
        if graph_task() == NO_TASK and not self.running.thread().frames:
            self.register_model(module, self.running.tree.enter(module, ()))
            self.register(_tensors(args), Category.INPUT, None)
        self.running.module_starts(module)

    def _module_ends(self, module: nn.Module, *told: Any) -> None:
        # Only this hook is told the keyword arguments, and only after a forward that did not raise.
        if len(told) == 3 and told[1] and graph_task() == NO_TASK and len(self.running.thread().frames) == 1:
            self.register(_tensors(told[1]), Category.INPUT, None)
        self.running.module_ends(module)

    def _parameter_set(self, _module: nn.Module, _name: str, parameter: torch.Tensor | None) -> None:
        if parameter is not None:
            self.register([parameter], Category.PARAMETER, None)

    def _buffer_set(self, _module: nn.Module, _name: str, buffer: torch.Tensor | None) -> None:
        if buffer is not None:
            self.register([buffer], Category.BUFFER, None)

    def _optimizer_starts(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        # One that was attached by hand, not by the engine.
        self.register((p.grad for p in parameters if p.grad is not None), Category.GRADIENT, None)
        self.running.optimizer_starts()

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.register_optimizer(optimizer)
        self.running.optimizer_ends()
        if self.on_optimizer_step is not None:
            self.on_optimizer_step(optimizer)

    def step(self) -> None:
        """Log the end of a training step."""
        context = self.running.step_ends()
        self.log_bytes.extend(rows.ROW.pack(rows.STEP, context, time.perf_counter_ns(), 0, 0))

    def mark(self, name: str) -> None:
        """Log a MARKER."""
        code = self.labels.code(rows.MARKER, name)
        context = self.running.thread().context
        self.log_bytes.extend(rows.ROW.pack(code, context, time.perf_counter_ns(), 0, 0))

    # ---- operators

    def _dispatch_function(self) -> Callable[..., Any]:
        """The function that runs for every operator, with everything it needs in its closure."""
        running, operators, live = self.running, self._operators, self.live_storages
        push, pack = self.log_bytes.extend, rows.ROW.pack
        threads, current_thread = running.threads, threading.get_ident
        clock, current_task = time.perf_counter_ns, graph_task
        pack_two, next_number = rows.TWO_ROWS.pack, self._next_number
        tensor_type, new_ref, released = torch.Tensor, _StorageRef, self._released

        def dispatch(
            _mode: _DispatchMode, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            try:
                thread = threads.get(current_thread()) or running.thread()
                operator = operators.get(id(func)) or self._operator(func)
                task = current_task()
                context = thread.context if task == thread.task else running.context(thread, task)
            except Exception as error:
                self.fail(error)
                return func(*args, **(kwargs or {}))
            thread.net = 0
            began = clock()
            try:
                result = operator.call(*args, **kwargs) if kwargs else operator.call(*args)
            except BaseException:
                push(pack(operator.code, context, began, clock(), thread.net))
                raise
            ended = clock()
            try:
                if type(result) is tensor_type and not operator.watched:
                    storage = result.untyped_storage()
                    key = id(storage)
                    known = live.get(key)
                    if known is None:
                        if result.is_cpu:
                            # What `_found` does, and the operator's row with it: the commonest case by far.
                            size, number, code = storage.nbytes(), next_number(), operator.allocation_code
                            live[key] = found = new_ref(storage, released)
                            found.device = 0
                            found.size = size
                            found.release = (key, code + _RELEASE_AFTER_ALLOCATION, number)
                            net = thread.net + size
                            own = operator.code
                            push(
                                pack_two(code, context, ended, size, number, own, context, began, ended, net)
                            )
                            return result
                        known = self._found(storage, result, operator.allocation_code, context, ended, thread)
                else:
                    known = self._look_through(result, args, operator, context, ended, thread)
                if known is None:
                    push(pack(operator.code, context, began, ended, thread.net))
                else:
                    device = known.device
                    row = pack(operator.code + device, context, began, ended, thread.net)
                    push(row + self._counters_row(device, context) if device else row)
            except Exception as error:
                if type(result) is tensor_type and _storage(result) is None:
                    push(pack(operator.code, context, began, ended, thread.net))
                else:
                    self.fail(error)
            return result

        return dispatch

    def _detailed(self, dispatch: Callable[..., Any], details: Details) -> Callable[..., Any]:
        """The same, with what was asked for of each call logged before it."""
        push, pack, running = self.log_bytes.extend, rows.ROW.pack, self.running

        def detailed(
            mode: Any, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            try:
                inputs, stack = details.of_call(args, kwargs)
                push(pack(rows.DETAILS, running.thread().context, inputs, stack, 0))
            except Exception as error:
                self.fail(error)
            return dispatch(mode, func, _types, args, kwargs)

        return detailed

    def _operator(self, function: Any) -> _Operator:
        return self._operators.setdefault(id(function), _Operator(function, self.labels))

    # ---- storages

    def _release_function(self) -> Callable[[_StorageRef], None]:
        running, live = self.running, self.live_storages
        push, pack = self.log_bytes.extend, rows.ROW.pack
        threads, current_thread = running.threads, threading.get_ident
        clock, current_task = time.perf_counter_ns, graph_task

        def released(storage: _StorageRef) -> None:
            key, code, number = storage.release
            if live.pop(key, None) is None:
                return
            size = storage.size
            thread = threads.get(current_thread()) or running.thread()
            thread.net -= size
            # In backward, that of the last operator: the node that held the storage has just ended.
            context = thread.context if current_task() == thread.task else thread.backward_context
            push(pack(code, context, clock(), size, number))

        return released

    def _found(
        self,
        storage: torch.UntypedStorage,
        tensor: torch.Tensor,
        code: int,
        context: int,
        now: int,
        thread: Thread,
    ) -> _StorageRef | None:
        """A storage not seen before: log its allocation and wait for its release."""
        size = int(storage.nbytes())
        device = 0 if type(tensor) is torch.Tensor and tensor.is_cpu else self._device(tensor.device)
        if device < 0:
            return None
        found = _StorageRef(storage, self._released)
        number = self._next_number()
        key = id(storage)
        found.device = device
        found.size = size
        found.release = (key, code + device + _RELEASE_AFTER_ALLOCATION, number)
        self.live_storages[key] = found
        thread.net += size
        self.log_bytes.extend(rows.ROW.pack(code + device, context, now, size, number))
        return found

    def _look_through(
        self, result: Any, args: tuple[Any, ...], operator: _Operator, context: int, now: int, thread: Thread
    ) -> _StorageRef | None:
        """Everything but a lone plain tensor: find new and resized storages; returns one of them."""
        known = None
        for tensor in _tensors(result):
            known = self._look_at(tensor, operator, context, now, thread) or known
        if known is None:  # no tensor came out: the device is that of what went in
            for tensor in _tensors(args):
                storage = _storage(tensor)
                known = self.live_storages.get(id(storage)) if storage is not None else None
                if known is not None:
                    break
        return known

    def _look_at(
        self, tensor: torch.Tensor, operator: _Operator, context: int, now: int, thread: Thread
    ) -> _StorageRef | None:
        storage = _storage(tensor)
        if storage is None:
            return None
        known = self.live_storages.get(id(storage))
        if known is not None and operator.watched and known.size != storage.nbytes():
            self._released(known)
            known = None
        if known is None:
            known = self._found(storage, tensor, operator.allocation_code, context, now, thread)
        if known is not None and thread.accumulates and context == thread.backward_context:
            self._claim(known, Category.GRADIENT, context)
        return known

    def register(
        self, tensors: Iterable[torch.Tensor], category: Category, module: ModuleNode | None
    ) -> None:
        """Log what these tensors are for; those not known yet as living since before now."""
        thread = self.running.thread()
        code = self.labels.code(rows.ALLOCATION, None, category)
        context = self.labels.context(module.path if module else None, int(Phase.OTHER), thread.name)
        now = time.perf_counter_ns()
        for tensor in tensors:
            storage = _storage(tensor)
            if storage is None:
                continue
            known = self.live_storages.get(id(storage))
            if known is None:
                known = self._found(storage, tensor, code, context, now, thread)
                if known is not None:
                    known.placed = module is not None
            elif category is not Category.UNATTRIBUTED:
                self._claim(known, category, context, module)

    def register_model(self, module: nn.Module, node: ModuleNode) -> None:
        """Log the parameters and buffers of a module and those below it, where that is news."""
        if not any(map(self._is_news, itertools.chain(module.parameters(), module.buffers()))):
            return
        for below, place in nodes_below(node):
            self.register((p for p in below._parameters.values() if p is not None), Category.PARAMETER, place)
            self.register((b for b in below._buffers.values() if b is not None), Category.BUFFER, place)

    def register_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the tensors of an optimizer's state, each with its parameter's module, where that is news."""
        for parameter, state in list(optimizer.state.items()):
            tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
            if any(map(self._is_news, tensors)):
                owner = self.running.tree.owner_of_parameter(parameter)
                self.register(tensors, Category.OPTIMIZER_STATE, owner)

    def _is_news(self, tensor: torch.Tensor) -> bool:
        """Whether it was not said yet where this tensor belongs."""
        storage = _storage(tensor)
        if storage is None or tensor.is_meta:
            return False
        known = self.live_storages.get(id(storage))
        return known is None or not getattr(known, "placed", False)

    def _claim(
        self, storage: _StorageRef, category: Category, context: int, place: ModuleNode | None = None
    ) -> None:
        """Log what a live storage is for, unless more is known of it already."""
        key, code, number = storage.release
        now_for, claimed_for = _CLAIMS.get(self.labels.category_of(code), 0), _CLAIMS[category]
        moves_in = place is not None and not getattr(storage, "placed", False)
        if claimed_for < now_for or (claimed_for == now_for and not moves_in):
            return
        storage.placed = place is not None
        code = self.labels.with_category(code, category)
        storage.release = (key, code, number)
        code += _CATEGORY_AFTER_RELEASE
        self.log_bytes.extend(rows.ROW.pack(code, context, time.perf_counter_ns(), storage.size, number))

    # ---- devices

    def _device(self, device: torch.device) -> int:
        """The device as part of a code (its index × DEVICE_UNIT); −1 where tensors take no memory."""
        if device.type == "meta":
            return -1
        if device.type == "cpu":
            return 0
        with self._growing:
            if device not in self.devices:
                if len(self.devices) == rows.MAX_DEVICES:
                    raise RuntimeError(f"more than {rows.MAX_DEVICES} devices in one process")
                self.device_readers.append(None if self._fake else counters.reader_of(device))
                self.devices.append(device)
            return self.devices.index(device) * DEVICE_UNIT

    def _counters_row(self, device: int, context: int) -> bytes:
        """What a device's allocator says now; no row for a device that has none to ask."""
        reader = self.device_readers[device // DEVICE_UNIT]
        if reader is None:
            return b""
        read = reader()
        return rows.ROW.pack(device + rows.COUNTERS, context, read.allocated, read.active, read.reserved)

    def sample(self) -> None:
        """Log the counters of every device that has them."""
        context = self.running.thread().context
        code = self.labels.code(rows.SAMPLE, None)
        for device in range(0, len(self.devices) * DEVICE_UNIT, DEVICE_UNIT):
            counters_row = self._counters_row(device, context)
            if counters_row:
                row = rows.ROW.pack(code + device, context, time.perf_counter_ns(), 0, 0)
                self.log_bytes.extend(row + counters_row)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts; of a tensor subclass made of tensors, those."""
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor and is_traceable_wrapper_subclass(value):
            for name in value.__tensor_flatten__()[0]:
                yield from _tensors(getattr(value, name))
        else:
            yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a tensor, None for layouts that have none of their own (sparse, opaque)."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError, ValueError):  # ValueError: a LazyModule's parameter
        return None
