"""Attributes of other modules that are something else for a while."""

from __future__ import annotations

from typing import Any, Final

_ABSENT: Final = object()


class Replacements:
    """Sets attributes, and sets them back in reverse order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module, class or object; one that it does not have is added."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Everything is as before. Calling it twice does nothing."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
