"""`FSDPMemTracker`: what `MemTracker` does, for modules that `fully_shard` has sharded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from memexport.compat._categories import FSDP_MEM_TRACKER, RefTypes
from memexport.compat._module_stats import FSDP_MEM_TRACKER_STATES, FSDPModState, States
from memexport.compat.mem_tracker import MemTracker
from memexport.model import Category
from memexport.tracker.storages import tensors_in


class FSDPMemTracker(MemTracker):
    """Tracks a sharded model, its optimizer, and what is made in its context.

    ```python
    tracker = FSDPMemTracker(model, optimizer)
    tracker.track_inputs((batch,))
    with tracker:
        model(batch).sum().backward()
        optimizer.step()
    tracker.display_snapshot("peak")
    ```

    Snapshots are those of sharded modules, before and after each of FSDP's own hooks.

    Args:
        mod: the root, a `torch.distributed.fsdp.FSDPModule`.
        optm: its optimizer, if there is state already.

    Raises:
        AssertionError: the root is not sharded.
    """

    _categories: ClassVar[RefTypes] = FSDP_MEM_TRACKER
    _states: ClassVar[States] = FSDP_MEM_TRACKER_STATES

    def __init__(self, mod: nn.Module, optm: torch.optim.Optimizer | None = None) -> None:
        from torch.distributed.fsdp import FSDPModule  # slow, and not in every build

        super().__init__()
        if not isinstance(mod, FSDPModule):
            raise AssertionError("FSDPMemTracker only supports FSDP modules")
        self._root = mod
        self._optimizer = optm
        self._sharded_type = FSDPModule
        self._handles: list[Any] = []
        self._wrapped: list[tuple[Any, str]] = []

    def track_inputs(self, inputs: tuple[Any, ...]) -> None:
        """Track the tensors among these as "Inputs"."""
        self._capture.claims.tensors(tensors_in(inputs), Category.INPUT, None)

    def track_external(self, *external: Any) -> None:
        """Do nothing: the constructor knows what to track."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._depth == 0:
            self._unwatch_modules()

    # ---- FSDP's own hooks

    def _watch_modules(self) -> None:
        self._capture.register_model(self._root)
        if self._optimizer is not None:
            self._capture.claims.optimizer(self._optimizer)
        # torch runs hooks for all modules before a module's own, and of those FSDP's before ours.
        self._mod_tracker.register_user_hooks(self._before_pre_forward, self._before_post_forward)
        for module in self._root.modules():
            if isinstance(module, self._sharded_type):
                self._watch_module(module)

    def _watch_module(self, module: nn.Module) -> None:
        groups = list(_parameter_groups(module))
        if not groups:
            return
        self._handles += [
            module.register_forward_pre_hook(self._after_pre_forward),
            module.register_forward_hook(self._after_post_forward, always_call=True),
        ]
        for group in groups:
            self._wrap(group, "pre_backward", module, FSDPModState.BEF_PRE_BW, FSDPModState.AFT_PRE_BW)
            self._wrap(group, "post_backward", module, FSDPModState.BEF_POST_BW, FSDPModState.AFT_POST_BW)

    def _wrap(
        self, group: Any, method: str, module: nn.Module, before: FSDPModState, after: FSDPModState
    ) -> None:
        """Mark before and after a method that FSDP calls in backward: there is no hook for it."""
        original: Callable[..., Any] = getattr(group, method)

        @functools.wraps(original)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            self._mark_module(module, before)
            result = original(*arguments, **keywords)
            self._mark_module(module, after)
            return result

        setattr(group, method, wrapped)
        self._wrapped.append((group, method))

    def _unwatch_modules(self) -> None:
        for handle in self._handles:
            handle.remove()
        for group, method in self._wrapped:
            delattr(group, method)  # the class's own is there again
        self._handles.clear()
        self._wrapped.clear()

    # ---- modules

    def _before_pre_forward(self, module: nn.Module, _args: Any) -> None:
        self._notice_iteration(module)
        if self._is_watched(module) and not self._mod_tracker.is_bw:
            self._mark(self._stats_of(module).number, FSDPModState.BEF_PRE_FW)

    def _after_pre_forward(self, module: nn.Module, _args: Any) -> None:
        for below in self._in_group(module):
            self._capture.claims.gathered(below, None)
        self._mark_forward(module, FSDPModState.AFT_PRE_FW, FSDPModState.PRE_FW_AC)

    def _before_post_forward(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if self._is_watched(module):
            self._mark_forward(module, FSDPModState.BEF_POST_FW, FSDPModState.POST_FW_AC)

    def _after_post_forward(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if not self._mod_tracker.is_bw:
            self._mark_module(module, FSDPModState.AFT_POST_FW)

    def _mark_forward(self, module: nn.Module, first: FSDPModState, again: FSDPModState) -> None:
        self._mark_module(module, again if self._mod_tracker.is_bw else first)

    def _is_watched(self, module: nn.Module) -> bool:
        return isinstance(module, self._sharded_type) and any(True for _ in _parameter_groups(module))

    def _in_group(self, module: nn.Module) -> Iterator[nn.Module]:
        """The module and those below it, up to the next that is sharded by itself."""
        yield module
        for child in module.children():
            if not isinstance(child, self._sharded_type):
                yield from self._in_group(child)


def _parameter_groups(module: Any) -> Iterator[Any]:
    """What FSDP shards and gathers together for a module; nothing where it has no parameters of its own."""
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    for group in several if several is not None else [state._fsdp_param_group]:
        if group is not None:
            yield group
