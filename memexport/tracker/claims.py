"""Says what storages are for: those of models, optimizers, their gradients and inputs.

What is said of a storage after its allocation was logged is a CATEGORY row; `categories` makes sense of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn

from memexport.model import Category, Phase
from memexport.tracker import rows
from memexport.tracker.buckets import Buckets
from memexport.tracker.modules import ModuleNode, nodes_below
from memexport.tracker.rows import Labels
from memexport.tracker.running import Running
from memexport.tracker.storages import PLAIN, StorageRef, Storages, storage_of, tensors_in

_CATEGORY_AFTER_RELEASE: Final = rows.CATEGORY - rows.RELEASE

# Who may say what a storage is for: a later one overrules an earlier one, but none of its own line.
_LINES: Final = (
    (Category.INPUT,),
    (Category.ALL_GATHER, Category.REDUCE_SCATTER),
    (Category.GRADIENT, Category.UNSHARDED_GRADIENT, Category.SHARDED_GRADIENT),
    (Category.OPTIMIZER_STATE,),
    (Category.BUFFER,),
    (Category.PARAMETER, Category.UNSHARDED_PARAMETER, Category.SHARDED_PARAMETER),
)
_CLAIMS: Final = [
    next((place for place, line in enumerate(_LINES, 1) if category in line), 0) for category in Category
]
"""By category (a list: an enum member's hash is computed in Python), its line; 0 for one nobody claims."""
_ALL_REDUCE: Final = "c10d.allreduce_.default"

COLLECTIVES: Final[dict[str, tuple[Category, ...]]] = {
    _ALL_REDUCE: (),  # of anything
    "c10d._allgather_base_.default": (Category.ALL_GATHER, Category.ALL_GATHER),
    # What is left of a reduction is this process' part of the gradients.
    "c10d._reduce_scatter_base_.default": (Category.SHARDED_GRADIENT, Category.REDUCE_SCATTER),
}
"""What the output and the input of an operator are for."""

_SHARDED: Final = {
    Category.PARAMETER: Category.SHARDED_PARAMETER,
    Category.GRADIENT: Category.SHARDED_GRADIENT,
}


class Claims:
    """Logs what storages are for, each time that becomes known or more of it does.

    Attributes:
        is_sharded: whether parameters were met of which this process has only a part.
    """

    def __init__(self, labels: Labels, running: Running, storages: Storages, log_bytes: bytearray) -> None:
        self.is_sharded = False
        self._labels = labels
        self._running = running
        self._storages = storages
        self._push = log_bytes.extend
        self._buckets = Buckets(running.tree)

    def tensors(self, tensors: Iterable[torch.Tensor], category: Category, module: ModuleNode | None) -> None:
        """Log what these tensors are for; those not known yet as living since before now."""
        thread = self._running.thread()
        code = self._labels.code(rows.ALLOCATION, None, category)
        context = self._labels.context(module.path if module else None, int(Phase.OTHER), thread.name)
        now = time.perf_counter_ns()
        for tensor in tensors:
            if category in _SHARDED and _is_sharded(tensor):
                self.is_sharded = True
                self.tensors(tensors_in(tensor), _SHARDED[category], module)
                continue
            for part in tensors_in(tensor):
                self._register_one(part, code, category, context, now, module)

    def _register_one(
        self,
        tensor: torch.Tensor,
        code: int,
        category: Category,
        context: int,
        now: int,
        module: ModuleNode | None,
    ) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        known = self._storages.live.get(id(storage))
        if known is None:
            known = self._storages.found(storage, tensor, code, context, now, self._running.thread())
            if known is not None:
                known.placed = module is not None
        elif category is not Category.UNATTRIBUTED:
            self.claim(known, category, context, module)

    def model(self, module: nn.Module, node: ModuleNode) -> None:
        """Log the parameters and buffers of a module and those below it, where that is news."""
        if not any(map(self._is_news, _tensors_below(module))):
            return
        for below, place in nodes_below(node):
            self.tensors((p for p in below._parameters.values() if p is not None), Category.PARAMETER, place)
            self.tensors((b for b in below._buffers.values() if b is not None), Category.BUFFER, place)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the tensors of an optimizer's state, each with its parameter's module, where that is news."""
        for parameter, state in list(optimizer.state.items()):
            tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
            if any(map(self._is_news, tensors)):
                owner = self._running.tree.owner_of_parameter(parameter)
                self.tensors(tensors, Category.OPTIMIZER_STATE, owner)

    def _is_news(self, tensor: torch.Tensor) -> bool:
        """Whether it was not said yet where this tensor belongs."""
        if type(tensor) in PLAIN:
            return self._is_unplaced(tensor)
        return any(map(self._is_unplaced, tensors_in(tensor)))

    def _is_unplaced(self, tensor: torch.Tensor) -> bool:
        storage = storage_of(tensor)
        known = self._storages.live.get(id(storage))
        if known is not None:
            return not getattr(known, "placed", False)
        return storage is not None and not tensor.is_meta

    def claim(
        self, storage: StorageRef, category: Category, context: int, place: ModuleNode | None = None
    ) -> None:
        """Log what a live storage is for, unless more is known of it already."""
        key, code, number = storage.release
        now_for, claimed_for = _CLAIMS[self._labels.category_of(code)], _CLAIMS[category]
        moves_in = place is not None and not getattr(storage, "placed", False)
        if claimed_for < now_for or (claimed_for == now_for and not moves_in):
            return
        storage.placed = place is not None
        code = self._labels.with_category(code, category)
        storage.release = (key, code, number)
        code += _CATEGORY_AFTER_RELEASE
        self._push(rows.ROW.pack(code, context, time.perf_counter_ns(), storage.size, number))

    def inputs(self, arguments: Any) -> None:
        """Log what a model is called with."""
        self.tensors(tensors_in(arguments), Category.INPUT, None)

    def gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Log the gradients that an optimizer is about to use: not all were made by the engine."""
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
        self.tensors(itertools.filterfalse(self._is_gradient, gradients), Category.GRADIENT, None)

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        """Whether it is known to be one, quickly."""
        known = self._storages.known(tensor)
        return known is not None and self._labels.category_of(known.release[1]) == Category.GRADIENT

    def accumulated(self, storage: StorageRef, context: int) -> None:
        """Log what the engine adds to a parameter's gradient; of sharded ones it only knows the whole."""
        self.claim(storage, Category.UNSHARDED_GRADIENT if self.is_sharded else Category.GRADIENT, context)

    def gathered(self, module: nn.Module, place: ModuleNode | None) -> None:
        """Log the module's own parameters that are whole now, of which this process keeps but a part."""
        whole = (p for p in module._parameters.values() if p is not None and not _is_sharded(p))
        self.tensors(whole, Category.UNSHARDED_PARAMETER, place)

    def collective(self, name: str, arguments: Any) -> None:
        """Log the buffers of a collective: its output, then its input."""
        for category, tensor in zip(COLLECTIVES[name], arguments, strict=False):
            self.tensors(tensors_in(tensor), category, None)
        if name == _ALL_REDUCE:
            for tensor in tensors_in(arguments[0]):
                self._reduced(self._storages.known(tensor))

    def _reduced(self, storage: StorageRef | None) -> None:
        """Log which bucket of DDP's it is, if it is one: it holds gradients, and a backward reduces it."""
        if storage is None:
            return
        _, code, number = storage.release
        if self._labels.category_of(code) == Category.GRADIENT and (name := self._buckets.reduced(number)):
            context = self._labels.context(name, int(Phase.OTHER), self._running.thread().name)
            code += _CATEGORY_AFTER_RELEASE
            self._push(rows.ROW.pack(code, context, time.perf_counter_ns(), storage.size, number))


def _tensors_below(module: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers; what `parameters()` and `buffers()` give, in half the time."""
    for below in module.modules():
        for tensor in (*below._parameters.values(), *below._buffers.values()):
            if tensor is not None:
                yield tensor


def _is_sharded(tensor: torch.Tensor) -> bool:
    """Whether this process has only a part of it (a DTensor)."""
    if type(tensor) in PLAIN:
        return False
    return any(placement.is_shard() for placement in getattr(tensor, "placements", ()))
