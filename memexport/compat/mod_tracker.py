"""`ModTracker`: which modules are running their forward or backward, by name, with hooks around each."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from memexport.compat._module_names import ModuleNames
from memexport.tracker.threads import NO_TASK, graph_task

GLOBAL: Final = "Global"
Hook = Callable[..., Any]
_KINDS: Final = ("pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook")
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling


class _Call:
    """A module call whose backward may come."""

    __slots__ = ("ends_with_inputs", "module", "name", "number")

    def __init__(self, module: nn.Module, name: str, number: int) -> None:
        self.module = weakref.ref(module)
        self.name = name
        self.number = number
        self.ends_with_inputs = False
        """Whether gradients of its inputs say when its backward is over."""


class ModTracker:
    """Knows the modules that are running, by their fully qualified names.

    ```python
    with ModTracker() as tracker:
        model(x)  # inside, tracker.parents is {"Global", "Model", "Model.layer", ...}
    ```

    A module's backward runs from when the gradient of one of its outputs is known until those of all inputs
    are; of a module whose inputs need none, until the whole backward is over. Outside of the context nothing
    is tracked and no hook is called.

    Attributes:
        parents: the names of the modules that are running, and always "Global".
    """

    parents: set[str]

    def __init__(self) -> None:
        self.parents = {GLOBAL}
        self._names = ModuleNames()
        self._hooks: dict[str, Hook] = {}
        self._depth = 0
        self._handles: list[Any] = []
        self._leaf_handles: set[Any] = set()
        self._calls = 0
        self._forward: list[_Call] = []
        self._running: Counter[str] = Counter()
        self._backward: Counter[str] = Counter()
        # By backward: the calls that are over when it is.
        self._until_end: dict[int, list[_Call]] = {}

    @property
    def is_bw(self) -> bool:
        """Whether this thread is running a backward."""
        return graph_task() != NO_TASK

    def get_known_fqn(self, mod: nn.Module) -> str | None:
        """The name of a module that has been called or is below one that was; None for another.

        Of one with several names, that by which it was called last.
        """
        return self._names.known(mod)

    def register_user_hooks(
        self,
        pre_fw_hook: Hook | None = None,
        post_fw_hook: Hook | None = None,
        pre_bw_hook: Hook | None = None,
        post_bw_hook: Hook | None = None,
    ) -> None:
        """Call these around every module's forward and backward; its name is in `parents` then.

        Args:
            pre_fw_hook: called with the module and its positional arguments.
            post_fw_hook: called with the module, its positional arguments and what it returned.
            pre_bw_hook: called with the module (None if it is gone) and a tuple with the gradient of an
                output.
            post_bw_hook: called with the module (None if it is gone) and a tuple with the list of its inputs'
                gradients; an empty tuple if they need none.

        Raises:
            AssertionError: there is one of that kind already.
        """
        given = zip(_KINDS, (pre_fw_hook, post_fw_hook, pre_bw_hook, post_bw_hook), strict=True)
        hooks = {kind: hook for kind, hook in given if hook is not None}
        for kind in hooks.keys() & self._hooks.keys():
            raise AssertionError(f"there is a {kind} already: call clear_user_hooks() first")
        self._hooks |= hooks

    def clear_user_hooks(self) -> None:
        """Forget the hooks of `register_user_hooks`."""
        self._hooks.clear()

    def __enter__(self) -> ModTracker:
        self._depth += 1
        if self._depth == 1:
            register = nn.modules.module
            self._handles = [
                register.register_module_forward_pre_hook(self._forward_starts),
                register.register_module_forward_hook(self._forward_ends, always_call=True),
            ]
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            for handle in (*self._handles, *self._leaf_handles):
                handle.remove()
            self._handles.clear()
            self._leaf_handles.clear()
            self._forget_running()

    # ---- forward

    def _forward_starts(self, module: nn.Module, args: Any) -> None:
        if _is_compiling():
            return
        in_backward = self.is_bw
        if self._until_end and not in_backward and not self._forward:
            self._forget_running()  # a backward that raised never said that it was over
        name = self._names.of_call(module, reversed(self._forward))
        self._calls += 1
        call = _Call(module, name, self._calls)
        self._forward.append(call)
        self._running[name] += 1
        self.parents.add(name)
        if hook := self._hooks.get("pre_fw_hook"):
            hook(module, args)
        if not in_backward:
            ends = functools.partial(self._backward_ends, call)
            call.ends_with_inputs = self._on_gradients(args, ends, all)

    def _forward_ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if _is_compiling():
            return
        call = self._innermost(module)
        if call is None:  # its forward began before we did
            return
        if hook := self._hooks.get("post_fw_hook"):
            hook(module, args, output)
        place = self._forward.index(call)
        for left in self._forward[place:]:  # more than one if something skipped their hooks
            self._leave(self._running, left.name)
        del self._forward[place:]
        if not self.is_bw:
            self._on_gradients(output, functools.partial(self._backward_starts, call), any)

    def _innermost(self, module: nn.Module) -> _Call | None:
        for call in reversed(self._forward):
            if call.module() is module:
                return call
        return None

    # ---- backward

    def _on_gradients(self, value: Any, call: Hook, when: Callable[..., bool]) -> bool:
        """Call this when a backward knows the gradients of any or all of these tensors; whether it may."""
        tensors = [tensor for tensor in _whole_tensors(value) if tensor.requires_grad]
        if len(tensors) == 1:
            self._hook_tensor(tensors[0], call if when is any else lambda gradient: call([gradient]))
        elif tensors:
            handle = register_multi_grad_hook(tensors, call, mode="any" if when is any else "all")
            if any(tensor.is_leaf for tensor in tensors):
                self._leaf_handles.add(handle)
        return bool(tensors)

    def _hook_tensor(self, tensor: torch.Tensor, call: Hook) -> None:
        if not tensor.is_leaf:
            # It goes with the graph.
            tensor.register_hook(call)  # type: ignore[no-untyped-call]  # torch's is not annotated
            return

        def once(gradient: torch.Tensor) -> None:
            handle.remove()
            self._leaf_handles.discard(handle)
            call(gradient)

        # It would stay on a leaf.
        handle = tensor.register_hook(once)  # type: ignore[no-untyped-call]  # torch's is not annotated
        self._leaf_handles.add(handle)

    def _backward_starts(self, call: _Call, gradient: Any) -> None:
        if not self._depth:
            return
        self._backward[call.name] += 1
        self.parents.add(call.name)
        self._watch_end(None if call.ends_with_inputs else call)
        if hook := self._hooks.get("pre_bw_hook"):
            hook(call.module(), (gradient,))

    def _backward_ends(self, call: _Call, *gradients: Any) -> None:
        if not self._depth:
            return
        if hook := self._hooks.get("post_bw_hook"):
            hook(call.module(), gradients)
        self._leave(self._backward, call.name)

    def _watch_end(self, call: _Call | None) -> None:
        """Notice when the running backward is over; the call's own is then, too."""
        task = graph_task()
        if task not in self._until_end:
            self._until_end[task] = []
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(functools.partial(self._whole_backward_ends, task))
        if call is not None:
            self._until_end[task].append(call)

    def _whole_backward_ends(self, task: int) -> None:
        calls = self._until_end.pop(task, [])
        # The innermost first, as they would be if their inputs had gradients.
        for call in sorted(calls, key=lambda call: -call.number):
            self._backward_ends(call)
        if not self._until_end:
            self._backward.clear()
            self.parents = {GLOBAL, *self._running}

    # ---- what is running

    def _leave(self, count: Counter[str], name: str) -> None:
        count[name] -= 1
        if count[name] <= 0:
            del count[name]
            if name not in self._running and name not in self._backward:
                self.parents.discard(name)

    def _forget_running(self) -> None:
        self._forward.clear()
        self._running.clear()
        self._backward.clear()
        self._until_end.clear()
        self.parents = {GLOBAL}


def _whole_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts, not taken apart."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _whole_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _whole_tensors(item)


__all__ = ["ModTracker"]
