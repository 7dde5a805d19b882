"""What one thread is doing: its module calls, optimizer steps, and the backward that it works on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import torch

from memexport.model import Phase
from memexport.tracker.modules import ModuleNode, SequenceOwners
from memexport.tracker.rows import Labels

graph_task: Callable[[], int] = torch._C._current_graph_task_id
"""The backward that this thread works on: a number, `NO_TASK` outside the autograd engine."""

NO_TASK: Final = -1
LOOK_AGAIN: Final = -2
"""A task that never is: makes the next operator take the slow way, which finds out where it is."""

# A plain integer: an enum member's hash is computed in Python.
_OTHER: Final = int(Phase.OTHER)


class Frame:
    """A module call or optimizer step that is running.

    Attributes:
        node: the module, None for an optimizer.
        task: the backward in which it runs, `NO_TASK` for none.
        context: of the operators that it calls itself.
        outer_task, outer_context: the thread's before it started.
        started: `time.perf_counter_ns` then.
        tensor_bytes: what it was called with and what it returned, in bytes; None while that is not known.
    """

    __slots__ = ("context", "node", "outer_context", "outer_task", "started", "task", "tensor_bytes")

    def __init__(self, node: ModuleNode | None, task: int, context: int, outer: Thread) -> None:
        self.node = node
        self.task = task
        self.context = context
        self.outer_task = outer.task
        self.outer_context = outer.context
        self.started = time.perf_counter_ns()
        self.tensor_bytes: tuple[int, int] | None = None


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
        task_owners: the backwards that were last asked about, and the numbering that each one's nodes follow.
        makes_nodes_in: the backward in which this thread last made autograd nodes.
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
        "makes_nodes_in",
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
        self.backward_task = LOOK_AGAIN
        self.backward_sequence = 0
        self.backward_context = 0
        self.backward_contexts: dict[ModuleNode | None, int] = {}
        self.makes_nodes_in = NO_TASK
        self.recomputed: tuple[int, int] | None = None
        self.task_owners: dict[int, SequenceOwners] = {}

    def caller(self) -> ModuleNode | None:
        """The module that is running, None if none is."""
        return self.frames[-1].node if self.frames else None

    def is_outermost(self) -> bool:
        """Whether no module called the one that is running; an optimizer may have."""
        return len(self.frames) == 1 or (len(self.frames) > 1 and self.frames[-2].node is None)


def name_of_thread(own: int) -> str:
    """The calling thread's name; not by `current_thread`, which would add a thread of torch's to Python's."""
    name = next((thread.name for thread in threading.enumerate() if thread.ident == own), None)
    if own == threading.main_thread().ident and name is not None:
        return name
    return f"{name or 'autograd'} {threading.get_native_id()}"
