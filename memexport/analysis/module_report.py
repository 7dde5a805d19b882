"""Memory module by module, as a table for people and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from memexport.analysis.module_memory import ModuleMemory
from memexport.analysis.page import PLAIN, Style, new_table, rendered
from memexport.analysis.text import human_bytes, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_LISTED: Final = 40
"""Rows of the table: the modules with the highest peaks."""


def modules_as_dicts(modules: Iterable[ModuleMemory]) -> list[dict[str, Any]]:
    """Every module, device and phase; phases in lower case, bytes by category at the three moments."""
    return [{**asdict(module), "phase": module.phase.name.lower()} for module in modules]


def render_modules(modules: Iterable[ModuleMemory], style: Style = PLAIN) -> str:
    """A table of the modules, devices and phases with the highest peaks."""
    ordered = sorted(modules, key=lambda module: (-module.highest.peak_bytes, module.module, module.phase))
    if not ordered:
        return "No module was seen running."
    several = len({module.device for module in ordered}) > 1
    rows = new_table("", "module", "phase", ">calls", ">before", ">peak", ">kept")
    for module in ordered[:_LISTED]:
        highest = module.highest
        sizes = (sum(highest.before.values()), highest.peak_bytes, highest.activation_bytes)
        name = f"{module.module} on {module.device}" if several else module.module
        rows.add_row(
            printable(name), module.phase.name.lower(), f"{module.passes:,}", *map(human_bytes, sizes)
        )
    parts: list[RenderableType] = [rows]
    if (more := len(ordered) - _LISTED) > 0:
        parts.append(f"… and {more:,} more: --json has them all")
    return rendered(parts, style)
