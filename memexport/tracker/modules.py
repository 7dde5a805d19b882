"""Which module a piece of work belongs to: paths by call, and owners of autograd nodes."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn


class ModuleNode:
    """A module under the path that it was called by. A shared module has a node for each path.

    Holds the module weakly: tracking a model does not keep it alive.

    Attributes:
        path: what is shown.
        prefix: what the paths of modules below it begin with.
        caller: the node that called it, None for a root.
        called: the modules that were called from here, by id; a way to find their nodes again quickly.
        class_name: of the module.
        given: it is a root that the tracker was given.
        span_code: of the rows of its SPANs, once there was one.
    """

    __slots__ = ("called", "caller", "class_name", "given", "module", "path", "prefix", "span_code")

    def __init__(self, module: nn.Module, path: str, prefix: str, caller: ModuleNode | None) -> None:
        self.module = weakref.ref(module)
        self.class_name = type(module).__name__
        self.span_code: int | None = None
        self.path = path
        self.prefix = prefix
        self.caller = caller
        self.given = False
        self.called: dict[int, ModuleNode] = {}

    def find(self, module: nn.Module) -> ModuleNode | None:
        """A node for the module if it is this one or somewhere below it, else None."""
        own = self.module()
        if own is module:
            return self
        if own is None:
            return None
        for name, candidate in own.named_modules():
            if candidate is module:
                return ModuleNode(module, self.prefix + name, f"{self.prefix}{name}.", self)
        return None

    def callers(self) -> Iterator[ModuleNode]:
        """This node, its caller, and so on up to the root."""
        node: ModuleNode | None = self
        while node is not None:
            yield node
            node = node.caller


class ModuleTree:
    """The roots that were given or met, and the nodes below them.

    Paths are the names of `named_modules()`; a root's own is its class name. Where there are several roots
    with modules below them, the first keeps plain names and the others put their own name before them.
    """

    def __init__(self) -> None:
        self._roots: list[ModuleNode] = []
        self._called: dict[int, ModuleNode] = {}
        # By id: where a parameter is, as its module's node and its name there. Weak references to the
        # parameters themselves would make `torch.utils.swap_tensors` refuse them.
        self._parameters: dict[int, tuple[ModuleNode, str] | None] = {}

    def root_modules(self) -> list[nn.Module]:
        """The roots that still live."""
        return [module for root in self._roots if (module := root.module()) is not None]

    def give(self, module: nn.Module) -> ModuleNode:
        """Make the module a root that keeps its name inside a wrapper, as DistributedDataParallel."""
        root = self.add_root(module)
        root.given = True
        return root

    def add_root(self, module: nn.Module) -> ModuleNode:
        """Make the module a root (the same node if it is one) and own the parameters below it."""
        for root in self._roots:
            if root.module() is module:
                return root
        # One that is gone gives its name to the next: a loss module is often made anew in every step.
        self._roots = [root for root in self._roots if root.module() is not None]
        name = self._free_name(type(module).__name__)
        first = not any(root.prefix == "" for root in self._roots)
        has_children = next(module.children(), None) is not None
        root = ModuleNode(module, name, "" if first and has_children else f"{name}.", None)
        self._roots.append(root)
        self._own_parameters(root)
        return root

    def enter(self, module: nn.Module, callers: Iterable[ModuleNode]) -> ModuleNode:
        """The node of a module that is being called; `callers` from the innermost out.

        It is named below the innermost caller that contains it, else below a root, else it is a new root. But
        a root that was given is itself, unless a module of another such root calls it.
        """
        callers = list(callers)
        cache = callers[0].called if callers else self._called
        node = cache.get(id(module))
        if node is None or node.module() is not module:
            node = cache[id(module)] = self._locate(module, callers)
        return node

    def owner_of_parameter(self, parameter: torch.Tensor) -> ModuleNode | None:
        """The module that has this parameter, the first in `named_modules()`; None if none has."""
        if not self._is_placed(parameter) and self._parameters.get(id(parameter), ()) is not None:
            for root in self._roots:  # it may have been added since
                self._own_parameters(root)
            if not self._is_placed(parameter):
                self._parameters[id(parameter)] = None
        place = self._parameters[id(parameter)]
        return place[0] if place is not None else None

    def _is_placed(self, parameter: torch.Tensor) -> bool:
        """Whether the parameter is still where it was found."""
        place = self._parameters.get(id(parameter))
        if place is None:
            return False
        module = place[0].module()
        # A ScriptModule's `_parameters` is no dict, and has no `get`.
        return (
            module is not None
            and place[1] in module._parameters
            and (module._parameters[place[1]] is parameter)
        )

    def _locate(self, module: nn.Module, callers: list[ModuleNode]) -> ModuleNode:
        if not any(caller.given for caller in callers):
            for root in self._roots:
                if root.given and root.module() is module:
                    return root
        for place in [*callers, *self._roots]:
            found = place.find(module)
            if found is not None:
                return found
        return self.add_root(module)

    def _free_name(self, class_name: str) -> str:
        taken = {root.path for root in self._roots}
        name, count = class_name, 1
        while name in taken:
            count += 1
            name = f"{class_name} ({count})"
        return name

    def _own_parameters(self, root: ModuleNode) -> None:
        for module, node in nodes_below(root):
            for name, parameter in module._parameters.items():
                if parameter is not None and not self._is_placed(parameter):
                    self._parameters[id(parameter)] = (node, name)


def nodes_below(root: ModuleNode) -> Iterator[tuple[nn.Module, ModuleNode]]:
    """The root's module and every one below it, each under its first name."""
    module = root.module()
    if module is None:
        return
    for name, below in module.named_modules():
        node = ModuleNode(below, root.prefix + name, f"{root.prefix}{name}.", root) if name else root
        yield below, node


_MOST_BOUNDARIES = 1 << 20


class SequenceOwners:
    """Whose forward made which autograd nodes, in one thread.

    Autograd numbers the nodes that a thread makes one after another. Noting the next number whenever the
    running module changes says for every number which module was running when it was given.

    Attributes:
        changes: how often it was told anything.
        differentiates: the thread is the autograd engine's, and makes nodes in backward: its last number is
            the last that it was told of.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: list[ModuleNode | None] = []
        self._latest = 0
        self._recent_from = self._next_recent_from = 0
        self.changes = 0
        self.differentiates = False

    def running(self, next_sequence: int, owner: ModuleNode | None) -> None:
        """From this number on, nodes belong to `owner` (None: to no module)."""
        self.changes += 1
        self._latest = next_sequence
        if self._starts and self._starts[-1] == next_sequence:
            self._owners[-1] = owner
            return
        if self._starts and self._starts[-1] > next_sequence:
            # The thread has ended, and another has its identity and counts from 0.
            self._starts.clear()
            self._owners.clear()
            self._recent_from = self._next_recent_from = 0
        self._starts.append(next_sequence)
        self._owners.append(owner)
        if len(self._starts) > _MOST_BOUNDARIES:
            # A graph that old is hardly alive. If it is, its operators show no module, not a wrong one.
            del self._starts[: _MOST_BOUNDARIES // 2], self._owners[: _MOST_BOUNDARIES // 2]

    def made(self, next_sequence: int, owner: ModuleNode | None, *, goes_on: bool) -> None:
        """An operator runs whose node has just been made, before its next number: that belongs to `owner`.

        So does what was made since the last call of `running` or `made`, if that `goes_on` here.
        """
        begin = self._latest if goes_on else next_sequence - 1
        if self._starts and self._starts[-1] <= next_sequence:
            begin = max(begin, self._starts[-1])
        self.running(min(begin, next_sequence), owner)
        self._latest = next_sequence

    def left(self, owner: ModuleNode | None) -> None:
        """What was made since the last call of `made` belongs to `owner`."""
        self.running(self._latest, owner)

    def owner(self, sequence: int) -> ModuleNode | None:
        """The module that was running when the node with this number was made; None if none or unknown."""
        index = bisect_right(self._starts, sequence) - 1
        return self._owners[index] if index >= 0 else None

    def step(self) -> None:
        """A step is over."""
        self._recent_from, self._next_recent_from = self._next_recent_from, self._latest

    def has_made(self, sequence: int) -> bool:
        """Whether the thread may have made a node of this number."""
        is_made = sequence < self._latest or not self.differentiates
        return is_made and bool(self._starts) and self._starts[0] <= sequence

    def is_recent(self, sequence: int) -> bool:
        """Whether its node of this number was made in this step or in the one before."""
        return sequence >= self._recent_from


next_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
