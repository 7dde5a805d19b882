"""What is running in each thread: modules, optimizer steps, backward; so that an operator knows where it is.

An operator's context is its module, phase and thread. In forward it follows from a stack of the running
module calls, kept by hooks. In backward it follows from the autograd node that is running: the module in
whose forward that node was made. How to find it is described in `modules.SequenceOwners`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn

from memexport.model import Phase
from memexport.tracker import rows
from memexport.tracker.call_stack import in_checkpoint, was_started_here
from memexport.tracker.makers import Makers
from memexport.tracker.modules import ModuleNode, ModuleTree, SequenceOwners, next_sequence
from memexport.tracker.rows import Labels
from memexport.tracker.threads import LOOK_AGAIN, NO_TASK, Frame, Thread, graph_task, name_of_thread

_current_node: Callable[[], Any] = torch._C._current_autograd_node
_is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled

_ACCUMULATE_GRAD_SEQUENCE: Final = 2**64 - 1
_MOST_NESTED: Final = 64
"""Backwards in one another of which the numbering is remembered."""

# Plain integers: an enum member's hash is computed in Python.
_FORWARD, _BACKWARD, _RECOMPUTE = int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.RECOMPUTE)
_OPTIMIZER, _OTHER = int(Phase.OPTIMIZER), int(Phase.OTHER)


class Running:
    """Keeps the threads' frames, and answers for operators that are not where the last module call put them.

    Args:
        labels: interns contexts.
        push: takes rows (`rows.ROW`): a SPAN for each module call, a BOUNDARY around outermost frames.

    Attributes:
        threads: by `threading.get_ident`.
        tree: the modules met so far.
    """

    def __init__(self, labels: Labels, push: Callable[[bytes], None]) -> None:
        self.threads: dict[int, Thread] = {}
        self.tree = ModuleTree()
        self._labels = labels
        self._push_row = push
        self._forward_thread: Thread | None = None
        self._makers = Makers()

    def thread(self) -> Thread:
        """The state of the calling thread."""
        known = self.threads.get(threading.get_ident())
        return known if known is not None else self._new_thread()

    def forget(self) -> None:
        """Drop every thread and what was running in it."""
        self.threads.clear()
        self._forward_thread = None
        self._makers.clear()

    def _new_thread(self) -> Thread:
        own = threading.get_ident()
        return self.threads.setdefault(own, Thread(name_of_thread(own), self._labels))

    # ---- the context of an operator

    def here(self) -> int:
        """The context of an operator that begins now in the calling thread."""
        thread, task = self.thread(), graph_task()
        return thread.context if task == thread.task else self.context(thread, task)

    def context(self, thread: Thread, task: int) -> int:
        """The context of an operator in this backward, where that is not the thread's own `task`."""
        node = _current_node()
        if (
            task == thread.backward_task
            and node is not None
            and node._sequence_nr() == thread.backward_sequence
            and not _is_grad_enabled()
        ):
            return thread.backward_context  # one more operator of the same autograd node
        if thread.task == LOOK_AGAIN:
            thread.owners.left(thread.caller())
            thread.task = thread.frames[-1].task if thread.frames else NO_TASK
            if task == thread.task:
                return thread.context
        if task == NO_TASK:  # a recomputation was left by an exception that runs no hooks
            self._pop_to(thread, next(d for d, f in enumerate(thread.frames) if f.task != NO_TASK))
            return thread.context
        self._forward_is_over()
        if node is None:
            return self._labels.context(None, _BACKWARD, thread.name)
        return self._context_of_node(thread, task, node)

    def _context_of_node(self, thread: Thread, task: int, node: Any) -> int:
        sequence = node._sequence_nr()
        thread.accumulates = sequence == _ACCUMULATE_GRAD_SEQUENCE
        owner = self._owner(thread, task, node, sequence)
        if _is_grad_enabled():
            return self._context_where_nodes_are_made(thread, task, owner)
        context = thread.backward_contexts.get(owner)
        if context is None:
            path = owner.path if owner is not None else None
            context = self._labels.context(path, _BACKWARD, thread.name)
            thread.backward_contexts[owner] = context
        # Every AccumulateGrad node has the same number, and other modules' parameters.
        thread.backward_task = LOOK_AGAIN if thread.accumulates else task
        thread.backward_sequence, thread.backward_context = sequence, context
        return context

    def _context_where_nodes_are_made(self, thread: Thread, task: int, owner: ModuleNode | None) -> int:
        """In a backward that is itself differentiated, or in a function that checkpointing runs again."""
        # What it makes belongs to the same module.
        thread.owners.made(next_sequence(), owner, goes_on=thread.makes_nodes_in == task)
        thread.makes_nodes_in = task
        thread.task = thread.backward_task = LOOK_AGAIN
        phase = _RECOMPUTE if in_checkpoint() else _BACKWARD
        if phase == _BACKWARD and thread is not self._forward_thread:
            thread.owners.differentiates = True
            self._makers.add(thread.owners)
        path = owner.path if owner is not None else None
        thread.backward_context = self._labels.context(path, phase, thread.name)
        return thread.backward_context

    def _forward_is_over(self) -> None:
        """A backward runs: what the forward thread does next outside a module is not forward any more."""
        forward = self._forward_thread
        if forward is not None and forward.base == _FORWARD:
            forward.base = _OTHER
            if not forward.frames:
                forward.context = self._labels.context(None, _OTHER, forward.name)

    def _owner(self, thread: Thread, task: int, node: Any, sequence: int) -> ModuleNode | None:
        """The module in whose forward the autograd node with this number was made."""
        if sequence == _ACCUMULATE_GRAD_SEQUENCE:
            return self.tree.owner_of_parameter(node.variable)
        owners = self._owners_of(thread, task)
        is_nested = owners is thread.owners and thread is not self._forward_thread
        if self._makers.are_several and not is_nested:
            return self._makers.owner(sequence)
        return owners.owner(sequence)

    def _owners_of(self, thread: Thread, task: int) -> SequenceOwners:
        """The numbering that the nodes of this backward follow: each forward thread has its own.

        Usually the forward thread's. Reentrant checkpointing runs forward and a nested backward inside a
        backward; on an accelerator that is another thread, with a numbering of its own.
        """
        known = thread.task_owners.get(task)
        if known is not None:
            return known
        forward = self._forward_thread
        owners = thread.owners
        if forward is not None and thread is not forward and not self._is_nested(thread, task, forward):
            owners = forward.owners
        if len(thread.task_owners) == _MOST_NESTED:
            del thread.task_owners[min(thread.task_owners)]
        thread.task_owners[task] = owners
        return owners

    def _is_nested(self, thread: Thread, task: int, forward: Thread) -> bool:
        """Whether this thread recomputed in another backward, and the forward thread slept since."""
        if thread.recomputed is None:
            return False
        recomputed_in, changes = thread.recomputed
        # Backwards are numbered: one that runs inside of another began after it.
        return recomputed_in < task and changes == forward.owners.changes and was_started_here()

    # ---- modules

    def module_starts(self, module: nn.Module) -> None:
        """A module is called."""
        thread, task = self.thread(), graph_task()
        if task == NO_TASK and self._forward_thread is not thread:
            self._forward_thread = thread
            self._makers.add(thread.owners)
        node = self._node(module, thread, task)
        self._push(thread, node, task, _FORWARD if task == NO_TASK else _RECOMPUTE)
        thread.owners.running(next_sequence(), node)

    def module_ends(self, module: nn.Module, tensor_bytes: tuple[int, int] | None = None) -> None:
        """A module's call is over, by a result (`tensor_bytes` are those of `Frame`) or an exception."""
        thread = self.thread()
        for depth in range(len(thread.frames) - 1, -1, -1):
            frame = thread.frames[depth]
            if frame.node is not None and frame.node.module() is module:
                frame.tensor_bytes = tensor_bytes
                self._pop_to(thread, depth)
                break

    def _node(self, module: nn.Module, thread: Thread, task: int) -> ModuleNode:
        """The node of a module that starts; quickly if its caller has called it before."""
        top = thread.frames[-1] if thread.frames else None
        if top is not None and top.task == task and top.node is not None:
            node = top.node.called.get(id(module))
            if node is not None and node.module() is module:
                return node
        return self.tree.enter(module, self._callers(thread, task))

    def _callers(self, thread: Thread, task: int) -> Iterator[ModuleNode]:
        """The modules that are calling now, innermost first; in a recomputation, those of the first time."""
        called_here = False
        for frame in reversed(thread.frames):
            if frame.task == task and frame.node is not None:
                called_here = True
                yield frame.node
        if task != NO_TASK and not called_here:
            node = _current_node()
            if node is None:
                return
            owner = self._owner(thread, task, node, node._sequence_nr())
            if owner is not None:
                yield from owner.callers()

    # ---- optimizers and steps

    def optimizer_starts(self) -> None:
        """An optimizer's step begins."""
        thread = self.thread()
        self._end_optimizers(thread)  # one that raised never said that it ended
        self._push(thread, None, graph_task(), _OPTIMIZER)

    def optimizer_ends(self) -> None:
        """An optimizer's step is over."""
        thread = self.thread()
        self._end_optimizers(thread)
        self._makers.step()
        if not thread.frames:
            thread.context = self._labels.context(None, _OTHER, thread.name)

    def step_ends(self) -> int:
        """A training step is over, and nothing is running now that began before; the context from here on."""
        thread = self.thread()
        if thread.frames and graph_task() == NO_TASK:
            self._pop_to(thread, 0)
        self._makers.step()
        thread.context = self._labels.context(None, _OTHER, thread.name)
        return thread.context

    def _end_optimizers(self, thread: Thread) -> None:
        for depth, frame in enumerate(thread.frames):
            if frame.node is None:
                self._pop_to(thread, depth)
                break

    # ---- frames

    def _push(self, thread: Thread, node: ModuleNode | None, task: int, phase: int) -> None:
        context = self._labels.context(node.path if node else None, phase, thread.name)
        if not thread.frames or thread.frames[-1].task != task:
            self._log_boundary(context)
        thread.frames.append(Frame(node, task, context, thread))
        thread.task, thread.context = task, context

    def _pop_to(self, thread: Thread, depth: int) -> None:
        """End the frames from this depth up: more than one if an exception skipped their hooks."""
        while len(thread.frames) > depth:
            frame = thread.frames.pop()
            self._log_span(frame)
            if not thread.frames or thread.frames[-1].task != frame.task:
                self._log_boundary(frame.context)
        thread.owners.running(next_sequence(), thread.caller())
        if frame.task != NO_TASK and not any(f.task == frame.task for f in thread.frames):
            forward = self._forward_thread or thread
            thread.recomputed = (frame.task, forward.owners.changes)
        thread.task, thread.context = frame.outer_task, frame.outer_context
        if not thread.frames and frame.node is not None and frame.task == NO_TASK:
            # A loss is computed after the model returned: until backward, that is still the forward.
            thread.base = _FORWARD if torch.is_grad_enabled() else _OTHER
            thread.context = self._labels.context(None, thread.base, thread.name)

    def _log_span(self, frame: Frame) -> None:
        node = frame.node
        if node is None:
            return
        if node.span_code is None:
            node.span_code = self._labels.code(rows.SPAN, node.class_name)
        now = time.perf_counter_ns()
        span = rows.ROW.pack(node.span_code, frame.context, frame.started, now, 0)
        if frame.tensor_bytes is not None:
            span += rows.ROW.pack(rows.TENSORS, frame.context, *frame.tensor_bytes, 0)
        self._push_row(span)

    def _log_boundary(self, context: int) -> None:
        now = time.perf_counter_ns()
        self._push_row(rows.ROW.pack(rows.BOUNDARY, context, now, now, 0))
