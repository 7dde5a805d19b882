"""What is running in each thread: modules, optimizer steps, backward; so that an operator knows where it is.

An operator's context is its module, phase and thread. In forward it follows from a stack of the running
module calls, kept by hooks. In backward it follows from the autograd node that is running: the module in
whose forward that node was made. How to find it is described in `modules.SequenceOwners`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn

from memexport.model import Phase
from memexport.tracker import rows
from memexport.tracker.modules import ModuleNode, ModuleTree, SequenceOwners, next_sequence
from memexport.tracker.rows import Labels

graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""The backward that this thread works on: a number, `NO_TASK` outside the autograd engine."""
_current_node: Callable[[], Any] = torch._C._current_autograd_node

NO_TASK: Final = -1
_LOOK_AGAIN: Final = -2
"""A task that never is: makes the next operator take the slow way, which finds out where it is."""
_ACCUMULATE_GRAD_SEQUENCE: Final = 2**64 - 1
_CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"
_CHECKPOINT_DEPTH: Final = 40
"""How many frames up torch.utils.checkpoint is looked for: a function that it runs again may call others."""

# Plain integers: an enum member's hash is computed in Python.
_FORWARD, _BACKWARD, _RECOMPUTE = int(Phase.FORWARD), int(Phase.BACKWARD), int(Phase.RECOMPUTE)
_OPTIMIZER, _OTHER = int(Phase.OPTIMIZER), int(Phase.OTHER)


class Frame:
    """A module call or optimizer step that is running.

    Attributes:
        node: the module, None for an optimizer.
        task: the backward in which it runs, `NO_TASK` for none.
        context: of the operators that it calls itself.
        outer_task, outer_context: the thread's before it started.
        started: `time.perf_counter_ns` then.
    """

    __slots__ = ("context", "node", "outer_context", "outer_task", "started", "task")

    def __init__(self, node: ModuleNode | None, task: int, context: int, outer: Thread) -> None:
        self.node = node
        self.task = task
        self.context = context
        self.outer_task = outer.task
        self.outer_context = outer.context
        self.started = time.perf_counter_ns()


class Thread:
    """Where one thread is.

    Attributes:
        name: what is shown.
        frames: what is running, outermost first.
        task, context: an operator that runs in this backward has this context; for one that does not, ask
            `Running.context`.
        net: bytes allocated less bytes released in the operator that is running.
        inside: what the operator that is just over took for a moment beyond what is left of it, in bytes.
        base: the phase outside all frames.
        owners: whose forward made which autograd nodes in this thread.
        backward_contexts: of the operators of each module's backward in this thread.
        accumulates: the autograd node asked about last adds to a parameter's gradient.
        backward_task, backward_sequence, backward_context: the autograd node asked about last, its answer.
        task_owners: the backward that was last asked about, and the numbering that its nodes follow.
        recomputed: the backward in which this thread last ran a forward again, and how often the running
            module of the forward thread had changed by then.
    """

    __slots__ = (
        "accumulates",
        "backward_context",
        "backward_contexts",
        "backward_sequence",
        "backward_task",
        "base",
        "context",
        "frames",
        "inside",
        "name",
        "net",
        "owners",
        "recomputed",
        "task",
        "task_owners",
    )

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.frames: list[Frame] = []
        self.base = _OTHER
        self.task = NO_TASK
        self.context = labels.context(None, _OTHER, name)
        self.net = 0
        self.inside = 0
        self.owners = SequenceOwners()
        self.accumulates = False
        self.backward_task = _LOOK_AGAIN
        self.backward_sequence = 0
        self.backward_context = 0
        self.backward_contexts: dict[ModuleNode | None, int] = {}
        self.recomputed: tuple[int, int] | None = None
        self.task_owners: tuple[int, SequenceOwners] | None = None

    def caller(self) -> ModuleNode | None:
        """The module that is running, None if none is."""
        return self.frames[-1].node if self.frames else None

    def is_outermost(self) -> bool:
        """Whether no module called the one that is running; an optimizer may have."""
        return len(self.frames) == 1 or (len(self.frames) > 1 and self.frames[-2].node is None)


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
        self._forward_threads: list[Thread] = []

    def thread(self) -> Thread:
        """The state of the calling thread."""
        known = self.threads.get(threading.get_ident())
        return known if known is not None else self._new_thread()

    def forget(self) -> None:
        """Drop every thread and what was running in it."""
        self.threads.clear()
        self._forward_thread = None
        self._forward_threads.clear()

    def _new_thread(self) -> Thread:
        current = threading.current_thread()
        name = current.name
        if current is not threading.main_thread():
            name = f"{name} {threading.get_native_id()}"
        return self.threads.setdefault(threading.get_ident(), Thread(name, self._labels))

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
            and not torch.is_grad_enabled()
        ):
            return thread.backward_context  # one more operator of the same autograd node
        if thread.task == _LOOK_AGAIN:
            thread.owners.running(next_sequence(), thread.caller())
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
        if torch.is_grad_enabled():
            return self._context_where_nodes_are_made(thread, owner)
        context = thread.backward_contexts.get(owner)
        if context is None:
            path = owner.path if owner is not None else None
            context = self._labels.context(path, _BACKWARD, thread.name)
            thread.backward_contexts[owner] = context
        # Every AccumulateGrad node has the same number, and other modules' parameters.
        thread.backward_task = _LOOK_AGAIN if thread.accumulates else task
        thread.backward_sequence, thread.backward_context = sequence, context
        return context

    def _context_where_nodes_are_made(self, thread: Thread, owner: ModuleNode | None) -> int:
        """In a backward that is itself differentiated, or in a function that checkpointing runs again."""
        thread.owners.running(next_sequence(), owner)  # what it makes belongs to the same module
        thread.task = thread.backward_task = _LOOK_AGAIN
        phase = _RECOMPUTE if _in_checkpoint() else _BACKWARD
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
        if len(self._forward_threads) > 1:
            return self._common_owner(sequence)
        return self._owners_of(thread, task).owner(sequence)

    def _common_owner(self, sequence: int) -> ModuleNode | None:
        """The module in which any thread made its node of this number; None where they differ.

        A node does not say which thread made it, and each thread counts from 0. Replicas of one model that
        run side by side make the same nodes.
        """
        found = [owner for thread in self._forward_threads if (owner := thread.owners.owner(sequence))]
        return found[0] if len({owner.path for owner in found}) == 1 else None

    def _owners_of(self, thread: Thread, task: int) -> SequenceOwners:
        """The numbering that the nodes of this backward follow: each forward thread has its own.

        Usually the forward thread's. Reentrant checkpointing runs forward and a nested backward inside a
        backward; on an accelerator that is another thread, with a numbering of its own.
        """
        if thread.task_owners is not None and thread.task_owners[0] == task:
            return thread.task_owners[1]
        forward = self._forward_thread
        owners = thread.owners
        if forward is not None and thread is not forward and not self._is_nested(thread, task, forward):
            owners = forward.owners
        thread.task_owners = (task, owners)
        return owners

    def _is_nested(self, thread: Thread, task: int, forward: Thread) -> bool:
        """Whether this thread recomputed in another backward, and the forward thread slept since."""
        if thread.recomputed is None:
            return False
        recomputed_in, changes = thread.recomputed
        return recomputed_in != task and changes == forward.owners.changes

    # ---- modules

    def module_starts(self, module: nn.Module) -> None:
        """A module is called."""
        thread, task = self.thread(), graph_task()
        if task == NO_TASK and self._forward_thread is not thread:
            self._forward_thread = thread
            if thread not in self._forward_threads:
                self._forward_threads.append(thread)
        node = self._node(module, thread, task)
        self._push(thread, node, task, _FORWARD if task == NO_TASK else _RECOMPUTE)
        thread.owners.running(next_sequence(), node)

    def module_ends(self, module: nn.Module) -> None:
        """A module's call is over, by a result or an exception."""
        thread = self.thread()
        for depth in range(len(thread.frames) - 1, -1, -1):
            node = thread.frames[depth].node
            if node is not None and node.module() is module:
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
        if not thread.frames:
            thread.context = self._labels.context(None, _OTHER, thread.name)

    def step_ends(self) -> int:
        """A training step is over, and nothing is running now that began before; the context from here on."""
        thread = self.thread()
        if thread.frames and graph_task() == NO_TASK:
            self._pop_to(thread, 0)
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
        self._push_row(rows.ROW.pack(node.span_code, frame.context, frame.started, now, 0))

    def _log_boundary(self, context: int) -> None:
        now = time.perf_counter_ns()
        self._push_row(rows.ROW.pack(rows.BOUNDARY, context, now, now, 0))


def _in_checkpoint() -> bool:
    """Whether torch.utils.checkpoint is running a function again, a few frames up."""
    frame = sys._getframe(3)
    for _ in range(_CHECKPOINT_DEPTH):
        if frame.f_code.co_filename.replace("\\", "/").endswith(_CHECKPOINT_FILE):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
