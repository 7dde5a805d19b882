"""A capture of what torch's memory trackers count: what was registered, and what operators return."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from memexport.model import Category, Tables
from memexport.tracker.capture import Capture
from memexport.tracker.claims import Claims
from memexport.tracker.rows import Labels
from memexport.tracker.storages import StorageRef
from memexport.tracker.threads import NO_TASK, graph_task


class _ModuleClaims(Claims):
    """Knows no gradients but those of modules' parameters."""

    def accumulated(self, storage: StorageRef, context: int) -> None:
        """Log what the engine adds to a gradient, if it is a parameter's."""
        if self._labels.modules[context]:
            super().accumulated(storage, context)


class RegisteredCapture(Capture):
    """Does not know of tensors that were there before and of which nobody told it, model inputs included.

    It can be stopped and started again; what it knows lives on in between, and so do releases.
    """

    def __init__(self) -> None:
        # No allocator is asked: these trackers add up tensors.
        super().__init__(Labels(Tables()), fake=True)
        self.claims = _ModuleClaims(self.labels, self.running, self.storages, self.log_bytes)
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._gradient_hooks: list[Any] = []

    def stop(self) -> None:
        """Take the mode and the hooks away. Calling it twice does nothing."""
        if self._watching:
            self._watching = False
            self._silence()
            self._remove_mode()
            self.running.forget()
            self._roots.clear()
            for hook in self._gradient_hooks:
                hook.remove()
            self._gradient_hooks.clear()

    def register_model(self, module: nn.Module) -> None:
        """Log its parameters, buffers and gradients."""
        tree = self.running.tree
        self.claims.model(module, tree.add_root(module))
        for parameter in module.parameters():
            if parameter.grad is not None:
                self.claims.tensors([parameter.grad], Category.GRADIENT, tree.owner_of_parameter(parameter))

    def _module_starts(self, module: nn.Module, _args: Any) -> None:
        if graph_task() == NO_TASK and not self.running.thread().frames:
            self.claims.model(module, self.running.tree.enter(module, ()))
            if module not in self._roots:
                self._roots.add(module)
                self.register_model(module)
                self._watch_gradients(module)
        self.running.module_starts(module)

    def _module_ends(self, module: nn.Module, *_told: Any) -> None:
        super()._module_ends(module)  # without its arguments, which are nobody's business here

    def _watch_gradients(self, module: nn.Module) -> None:
        """Be told of gradients when they are known: `torch.autograd.grad` does not accumulate them."""
        if not self.claims.is_sharded:
            arrives = self._guarded(self._gradient_arrives)
            self._gradient_hooks += [
                parameter.register_hook(arrives)  # type: ignore[no-untyped-call]  # torch's is not annotated
                for parameter in module.parameters()
                if parameter.requires_grad
            ]

    def _gradient_arrives(self, gradient: torch.Tensor) -> None:
        known = self.storages.known(gradient)
        # An expanded one only looks as large as the parameter; what is accumulated is a copy.
        if known is not None and known.size >= gradient.nbytes:
            self.claims.claim(known, Category.GRADIENT, self.running.thread().backward_context)
