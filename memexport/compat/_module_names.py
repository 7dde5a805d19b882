"""Fully qualified names of modules: the root's class, then the path below it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

from torch import nn


class Caller(Protocol):
    """A module that is running."""

    name: str
    module: weakref.ref[nn.Module]


class ModuleNames:
    """Names modules when they are first called, with everything below them. Holds them weakly."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[nn.Module, list[str]] = weakref.WeakKeyDictionary()

    def known(self, module: nn.Module) -> str | None:
        """The name by which it was called last, else its first one; None if it has none yet."""
        names = self._names.get(module)
        return names[0] if names else None

    def of_call(self, module: nn.Module, callers: Iterable[Caller]) -> str:
        """The name of a module that is called; `callers` are running, innermost first.

        Of several names, the one below the innermost caller that has one.
        """
        names = self._names.get(module)
        if names is None:
            callers = list(callers)
            self._add(module, callers)
            names = self._names[module]
        if len(names) > 1:
            self._prefer(names, callers)
        return names[0]

    def _add(self, module: nn.Module, callers: Iterable[Caller]) -> None:
        """Name a module that was not there when its caller was named, or that is a root."""
        for caller in callers:
            running = caller.module()
            if running is not None and any(below is module for below in running.modules()):
                self._name_below(running, caller.name)
                return
        self._name_below(module, type(module).__name__)

    def _name_below(self, module: nn.Module, name: str) -> None:
        for path, below in module.named_modules(remove_duplicate=False):
            names = self._names.setdefault(below, [])
            full_name = f"{name}.{path}" if path else name
            if full_name not in names:
                names.append(full_name)

    def _prefer(self, names: list[str], callers: Iterable[Caller]) -> None:
        for caller in callers:
            for place, name in enumerate(names):
                if name.startswith(f"{caller.name}."):
                    names.insert(0, names.pop(place))
                    return
