"""Which storages are the buckets in which DistributedDataParallel gathers gradients.

DDP makes them in C++ and names them nowhere. But each backward reduces them one after another, in order.
"""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from memexport.tracker.modules import ModuleTree
from memexport.tracker.threads import NO_TASK, graph_task


class Buckets:
    """Counts them in each backward.

    Args:
        tree: the modules that are known.
    """

    def __init__(self, tree: ModuleTree) -> None:
        self._tree = tree
        self._backward = NO_TASK
        self._count = 0
        self._named: set[int] = set()

    def reduced(self, storage: int) -> str | None:
        """The name of the storage with this number, which holds gradients and is reduced now.

        None if it was told before or is no bucket: nothing is reduced so but in the backward of a DDP model.
        """
        backward = graph_task()
        if backward == NO_TASK:
            return None
        self._count = self._count + 1 if backward == self._backward else 1
        self._backward = backward
        if storage in self._named or not self._has_ddp():
            return None
        self._named.add(storage)
        return f"DDP bucket {self._count - 1}"

    def _has_ddp(self) -> bool:
        return any(isinstance(root, DistributedDataParallel) for root in self._tree.root_modules())
