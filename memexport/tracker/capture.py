"""The hot path: what runs inside the user's training loop for every operator, storage and module call.

Everything here is written to be short at run time. One row per event goes to a shared byte log (`rows`); what
can be computed later is (`assemble`): counters, phase spans, steps, peaks. Nothing here may raise into the
user's program: a failure of ours stops the capture, with one warning.
"""

from __future__ import annotations

import itertools
import logging
import sys
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
from memexport.tracker.modules import ModuleNode, ModuleTree, SequenceOwners, next_sequence
from memexport.tracker.rows import DEVICE_UNIT, Labels

log = logging.getLogger("memexport")

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_current_node: Callable[[], Any] = torch._C._current_autograd_node
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_NO_TASK = -1
"""What `_graph_task` says outside the autograd engine."""
_LOOK_AGAIN = -2
"""A task that never is: makes the next operator take the slow way, which finds out where it is."""
_ACCUMULATE_GRAD_SEQUENCE = 2**64 - 1
# Plain integers: an enum member's hash is computed in Python.
_FORWARD, _BACKWARD, _RECOMPUTE = int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.RECOMPUTE)
_OPTIMIZER, _OTHER = int(Phase.OPTIMIZER), int(Phase.OTHER)
_RELEASE_AFTER_ALLOCATION = rows.RELEASE - rows.ALLOCATION
_CHECKPOINT_FILE = "torch/utils/checkpoint.py"


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    """A weak reference to a live storage, and what its RELEASE row will say."""

    __slots__ = ("device", "release", "size")

    device: int
    size: int
    release: tuple[int, int, int]
    """Its key in `Capture.live_storages`, the row's code, the storage's number."""


class _Frame:
    """A module call or optimizer step that is running."""

    __slots__ = ("context", "node", "outer_context", "outer_task", "started", "task")

    def __init__(self, node: ModuleNode | None, task: int, context: int, outer: _Thread) -> None:
        self.node = node
        self.task = task
        self.context = context
        self.outer_task = outer.task
        self.outer_context = outer.context
        self.started = time.perf_counter_ns()


class _Thread:
    """Where one thread is: the running modules, and the context of its next operator."""

    __slots__ = (
        "backward_context",
        "backward_sequence",
        "backward_task",
        "base",
        "context",
        "frames",
        "name",
        "net",
        "owners",
        "recomputed",
        "task",
        "task_owners",
    )

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.frames: list[_Frame] = []
        self.base = _OTHER
        self.task = _NO_TASK
        self.context = labels.context(None, _OTHER, name)
        self.net = 0
        self.owners = SequenceOwners()
        self.backward_task = _LOOK_AGAIN
        self.backward_sequence = 0
        self.backward_context = 0
        self.recomputed: tuple[int, int] | None = None
        self.task_owners: tuple[int, SequenceOwners] | None = None


class _Operator:
    """What is the same for every call of an operator."""

    __slots__ = ("allocation_code", "call", "code", "function", "resizes")

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
        self.resizes = name.startswith(("aten.resize", "aten.set_")) or "out" in name.rpartition(".")[2]


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
        tree: the modules met so far.
        failed: the error that stopped the capture before its time, None if there was none.
    """

    def __init__(self, labels: Labels, *, fake: bool) -> None:
        self.labels = labels
        self.log_bytes = bytearray()
        self.devices: list[torch.device] = [torch.device("cpu")]
        self.device_readers: list[counters.Reader | None] = [None]
        self.tree = ModuleTree()
        self.failed: Exception | None = None
        self.live_storages: dict[int, _StorageRef] = {}
        self._fake = fake
        self._threads: dict[int, _Thread] = {}
        self._operators: dict[int, _Operator] = {}
        self._next_number = itertools.count(1).__next__
        self._growing = threading.RLock()
        self._forward_thread: _Thread | None = None
        self._released = self._release_function()
        self._mode = _DispatchMode(self._dispatch_function())
        self._hooks: list[Any] = []
        self.on_optimizer_step: Callable[[torch.optim.Optimizer], None] | None = None

    # ---- life cycle

    def start(self) -> None:
        """Push the mode and register the hooks."""
        self._forward_thread = self._thread()
        register = nn.modules.module
        self._hooks = [
            register.register_module_forward_pre_hook(self._module_starts),
            register.register_module_forward_hook(self._module_ends, always_call=True),
            register_optimizer_step_pre_hook(self._optimizer_starts),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch's is not annotated

    def stop(self) -> None:
        """Take the mode and the hooks away, and forget every storage. Calling it twice does nothing."""
        self._silence()
        self._remove_mode()
        self.live_storages.clear()
        self._threads.clear()
        self._operators.clear()
        self._forward_thread = None

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

    def _fail(self, error: Exception) -> None:
        if self.failed is None:
            self.failed = error
            self._silence()
            log.warning("memexport stopped recording: %r; the program goes on", error, exc_info=error)

    # ---- operators

    def _dispatch_function(self) -> Callable[..., Any]:
        """The function that runs for every operator, with everything it needs in its closure."""
        threads, operators, live = self._threads, self._operators, self.live_storages
        push, pack = self.log_bytes.extend, rows.ROW.pack
        current_thread, clock, graph_task = threading.get_ident, time.perf_counter_ns, _graph_task
        tensor_type = torch.Tensor
        readers = self.device_readers

        def dispatch(
            _mode: _DispatchMode, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            thread = threads.get(current_thread()) or self._thread()
            operator = operators.get(id(func)) or self._operator(func)
            task = graph_task()
            context = thread.context if task == thread.task else self._context(thread, task)
            thread.net = 0
            began = clock()
            try:
                result = operator.call(*args, **kwargs) if kwargs else operator.call(*args)
            except BaseException:
                push(pack(operator.code, context, began, clock(), thread.net))
                raise
            ended = clock()
            try:
                if type(result) is tensor_type and not operator.resizes:
                    storage = result.untyped_storage()
                    known = live.get(id(storage))
                    if known is None:
                        known = self._found(storage, result, operator.allocation_code, context, ended, thread)
                else:
                    known = self._look_through(result, args, operator, context, ended, thread)
                if known is None:
                    push(pack(operator.code, context, began, ended, thread.net))
                else:
                    device = known.device
                    push(pack(operator.code + device, context, began, ended, thread.net))
                    if device and readers[device // DEVICE_UNIT] is not None:
                        self._read_counters(device, context)
            except Exception as error:
                if type(result) is tensor_type and _storage(result) is None:
                    push(pack(operator.code, context, began, ended, thread.net))
                else:
                    self._fail(error)
            return result

        return dispatch

    def _operator(self, function: Any) -> _Operator:
        return self._operators.setdefault(id(function), _Operator(function, self.labels))

    def _thread(self) -> _Thread:
        current = threading.current_thread()
        name = current.name
        if current is not threading.main_thread():
            name = f"{name} {threading.get_native_id()}"
        return self._threads.setdefault(threading.get_ident(), _Thread(name, self.labels))

    # ---- storages

    def _release_function(self) -> Callable[[_StorageRef], None]:
        threads, live = self._threads, self.live_storages
        push, pack = self.log_bytes.extend, rows.ROW.pack
        current_thread, clock = threading.get_ident, time.perf_counter_ns

        def released(storage: _StorageRef) -> None:
            key, code, number = storage.release
            if live.pop(key, None) is None:
                return
            size = storage.size
            thread = threads.get(current_thread()) or self._thread()
            thread.net -= size
            push(pack(code, thread.context, clock(), size, number))

        return released

    def _found(
        self,
        storage: torch.UntypedStorage,
        tensor: torch.Tensor,
        code: int,
        context: int,
        now: int,
        thread: _Thread,
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
        self, result: Any, args: tuple[Any, ...], operator: _Operator, context: int, now: int, thread: _Thread
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
        self, tensor: torch.Tensor, operator: _Operator, context: int, now: int, thread: _Thread
    ) -> _StorageRef | None:
        storage = _storage(tensor)
        if storage is None:
            return None
        known = self.live_storages.get(id(storage))
        if known is not None and operator.resizes and known.size != storage.nbytes():
            self._released(known)
            known = None
        if known is None:
            known = self._found(storage, tensor, operator.allocation_code, context, now, thread)
        return known

    def register(
        self, tensors: Iterable[torch.Tensor], category: Category, module: ModuleNode | None
    ) -> None:
        """Log the storages of these tensors that are not known yet as living since before now."""
        thread = self._thread()
        code = self.labels.code(rows.ALLOCATION, None, category)
        context = self.labels.context(module.path if module else None, _OTHER, thread.name)
        now = time.perf_counter_ns()
        for tensor in tensors:
            storage = _storage(tensor)
            if storage is not None and id(storage) not in self.live_storages:
                self._found(storage, tensor, code, context, now, thread)

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

    def _read_counters(self, device: int, context: int) -> None:
        reader = self.device_readers[device // DEVICE_UNIT]
        if reader is not None:
            read = reader()
            code = device + rows.COUNTERS
            self.log_bytes.extend(rows.ROW.pack(code, context, read.allocated, read.active, read.reserved))

    def sample(self) -> None:
        """Log the counters of every device that has them."""
        context = self._thread().context
        code = self.labels.code(rows.SAMPLE, None)
        for index, reader in enumerate(self.device_readers):
            if reader is not None:
                device = index * DEVICE_UNIT
                self.log_bytes.extend(rows.ROW.pack(code + device, context, time.perf_counter_ns(), 0, 0))
                self._read_counters(device, context)

    # ---- where we are

    def _context(self, thread: _Thread, task: int) -> int:
        """The context of an operator that is not where the thread's last module call put it."""
        node = _current_node()
        if (
            task == thread.backward_task
            and node is not None
            and node._sequence_nr() == thread.backward_sequence
            and not torch.is_grad_enabled()
        ):
            return thread.backward_context  # one more operator of the same autograd node
        if thread.task == _LOOK_AGAIN:
            top = thread.frames[-1] if thread.frames else None
            thread.owners.running(next_sequence(), top.node if top else None)
            thread.task = top.task if top else _NO_TASK
            if task == thread.task:
                return thread.context
        if task == _NO_TASK:  # a recomputation was left by an exception that runs no hooks
            self._pop_to(thread, next(d for d, f in enumerate(thread.frames) if f.task != _NO_TASK))
            return thread.context
        self._forward_is_over()
        if node is None:
            return self.labels.context(None, _BACKWARD, thread.name)
        return self._backward_context(thread, task, node)

    def _forward_is_over(self) -> None:
        """A backward runs: what the forward thread does next outside a module is not forward any more."""
        forward = self._forward_thread
        if forward is not None and forward.base == _FORWARD:
            forward.base = _OTHER
            if not forward.frames:
                forward.context = self.labels.context(None, _OTHER, forward.name)

    def _backward_context(self, thread: _Thread, task: int, node: Any) -> int:
        grad_enabled = torch.is_grad_enabled()
        owner = self._owner(thread, task, node)
        phase = _BACKWARD
        if grad_enabled:
            if _in_checkpoint():
                phase = _RECOMPUTE
            # Differentiating the backward itself: what it makes belongs to the same module.
            thread.owners.running(next_sequence(), owner)
            thread.task = _LOOK_AGAIN
        context = self.labels.context(owner.path if owner else None, phase, thread.name)
        sequence = node._sequence_nr()
        # Every AccumulateGrad node has the same number, and other modules' parameters.
        same_again = not grad_enabled and sequence != _ACCUMULATE_GRAD_SEQUENCE
        thread.backward_task = task if same_again else _LOOK_AGAIN
        thread.backward_sequence, thread.backward_context = sequence, context
        return context

    def _owner(self, thread: _Thread, task: int, node: Any) -> ModuleNode | None:
        """The module in whose forward the autograd node was made."""
        sequence = node._sequence_nr()
        if sequence == _ACCUMULATE_GRAD_SEQUENCE:
            return self.tree.owner_of_parameter(node.variable)
        return self._owners_of(thread, task).owner(sequence)

    def _owners_of(self, thread: _Thread, task: int) -> SequenceOwners:
        """The numbering that the nodes of this backward follow: each forward thread has its own.

        Usually the forward thread's. Reentrant checkpointing runs forward and a nested backward inside a
        backward; on an accelerator that is another thread, with a numbering of its own.
        """
        if thread.task_owners is not None and thread.task_owners[0] == task:
            return thread.task_owners[1]
        forward = self._forward_thread
        owners = thread.owners
        if forward is not None and thread is not forward and not self._nested(thread, task, forward):
            owners = forward.owners
        thread.task_owners = (task, owners)
        return owners

    def _nested(self, thread: _Thread, task: int, forward: _Thread) -> bool:
        """Whether this thread recomputed in another backward, and the forward thread slept since."""
        if thread.recomputed is None:
            return False
        recomputed_in, changes = thread.recomputed
        return recomputed_in != task and changes == forward.owners.changes

    # ---- modules

    def _module_starts(self, module: nn.Module, args: Any) -> None:
        if _is_compiling():  # torch.compile would take this hook for a part of the model
            return
        try:
            thread = self._threads.get(threading.get_ident()) or self._thread()
            task = _graph_task()
            if task == _NO_TASK:
                self._forward_thread = thread
                if not thread.frames:
                    self._register_inputs(args)
            node = self._node(module, thread, task)
            self._push(thread, node, task, _FORWARD if task == _NO_TASK else _RECOMPUTE)
            thread.owners.running(next_sequence(), node)
        except Exception as error:
            self._fail(error)

    def _module_ends(self, module: nn.Module, _args: Any, _result: Any) -> None:
        if _is_compiling():
            return
        try:
            thread = self._threads.get(threading.get_ident()) or self._thread()
            for depth in range(len(thread.frames) - 1, -1, -1):
                node = thread.frames[depth].node
                if node is not None and node.module() is module:
                    self._pop_to(thread, depth)
                    break
        except Exception as error:
            self._fail(error)

    def _node(self, module: nn.Module, thread: _Thread, task: int) -> ModuleNode:
        """The node of a module that starts; quickly if its caller has called it before."""
        top = thread.frames[-1] if thread.frames else None
        if top is not None and top.task == task and top.node is not None:
            node = top.node.called.get(id(module))
            if node is not None and node.module() is module:
                return node
        return self.tree.enter(module, self._callers(thread, task))

    def _callers(self, thread: _Thread, task: int) -> Iterator[ModuleNode]:
        """The modules that are calling now, innermost first; in a recomputation, those of the first time."""
        nested = False
        for frame in reversed(thread.frames):
            if frame.task == task and frame.node is not None:
                nested = True
                yield frame.node
        if task != _NO_TASK and not nested:
            node = _current_node()
            owner = self._owner(thread, task, node) if node is not None else None
            if owner is not None:
                yield from owner.callers()

    def _push(self, thread: _Thread, node: ModuleNode | None, task: int, phase: int) -> None:
        context = self.labels.context(node.path if node else None, phase, thread.name)
        if not thread.frames or thread.frames[-1].task != task:
            self._log_boundary(context)
        thread.frames.append(_Frame(node, task, context, thread))
        thread.task, thread.context = task, context

    def _pop_to(self, thread: _Thread, depth: int) -> None:
        """End the frames from this depth up: more than one if an exception skipped their hooks."""
        while len(thread.frames) > depth:
            frame = thread.frames.pop()
            self._log_span(frame)
            if not thread.frames or thread.frames[-1].task != frame.task:
                self._log_boundary(frame.context)
        outer = thread.frames[-1] if thread.frames else None
        thread.owners.running(next_sequence(), outer.node if outer else None)
        if frame.task != _NO_TASK and not any(f.task == frame.task for f in thread.frames):
            forward = self._forward_thread or thread
            thread.recomputed = (frame.task, forward.owners.changes)
        thread.task, thread.context = frame.outer_task, frame.outer_context
        if outer is None and frame.node is not None and frame.task == _NO_TASK:
            # A loss is computed after the model returned: until backward, that is still the forward.
            thread.base = _FORWARD if torch.is_grad_enabled() else _OTHER
            thread.context = self.labels.context(None, thread.base, thread.name)

    def _log_span(self, frame: _Frame) -> None:
        node = frame.node
        if node is None:
            return
        if node.span_code is None:
            node.span_code = self.labels.code(rows.SPAN, node.class_name)
        now = time.perf_counter_ns()
        self.log_bytes.extend(rows.ROW.pack(node.span_code, frame.context, frame.started, now, 0))

    def _log_boundary(self, context: int) -> None:
        now = time.perf_counter_ns()
        self.log_bytes.extend(rows.ROW.pack(rows.BOUNDARY, context, now, now, 0))

    def _register_inputs(self, args: Any) -> None:
        self.register(_tensors(args), Category.INPUT, None)

    # ---- optimizers, steps, markers

    def _optimizer_starts(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        try:
            thread = self._threads.get(threading.get_ident()) or self._thread()
            self._end_optimizer_frames(thread)  # one that raised never said that it ended
            self._push(thread, None, _graph_task(), _OPTIMIZER)
        except Exception as error:
            self._fail(error)

    def _optimizer_ends(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        try:
            thread = self._threads.get(threading.get_ident()) or self._thread()
            self._end_optimizer_frames(thread)
            if not thread.frames:
                thread.context = self.labels.context(None, _OTHER, thread.name)
            if self.on_optimizer_step is not None:
                self.on_optimizer_step(optimizer)
        except Exception as error:
            self._fail(error)

    def _end_optimizer_frames(self, thread: _Thread) -> None:
        for depth, frame in enumerate(thread.frames):
            if frame.node is None:
                self._pop_to(thread, depth)
                break

    def step(self) -> None:
        """Log the end of a training step. Nothing is running now that began before it."""
        thread = self._thread()
        if thread.frames and _graph_task() == _NO_TASK:
            self._pop_to(thread, 0)
        thread.context = self.labels.context(None, _OTHER, thread.name)
        self.log_bytes.extend(rows.ROW.pack(rows.STEP, thread.context, time.perf_counter_ns(), 0, 0))

    def mark(self, name: str) -> None:
        """Log a MARKER."""
        code = self.labels.code(rows.MARKER, name)
        context = self._thread().context
        self.log_bytes.extend(rows.ROW.pack(code, context, time.perf_counter_ns(), 0, 0))


def _in_checkpoint() -> bool:
    """Whether torch.utils.checkpoint is running a function again, a few frames up."""
    frame = sys._getframe(2)
    for _ in range(40):
        if frame.f_code.co_filename.replace("\\", "/").endswith(_CHECKPOINT_FILE):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


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
    except (NotImplementedError, RuntimeError):
        return None
