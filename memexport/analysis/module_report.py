"""Memory module by module, as a table for people and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from memexport.analysis.module_memory import ModuleMemory, ModulePass
from memexport.analysis.page import PLAIN, UNKNOWN, Style, new_table, rendered
from memexport.analysis.text import human_bytes, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_LISTED: Final = 40
"""Rows of the table: the modules with the highest peaks."""

_FIGURES: Final = ("before", "peak", "kept", "in", "out")
_ANY_WIDTH: Final = 10_000


def modules_as_dicts(modules: Iterable[ModuleMemory]) -> list[dict[str, Any]]:
    """Every module, device and phase; phases in lower case, bytes by category at the three moments."""
    return [{**asdict(module), "phase": module.phase.name.lower()} for module in modules]


def render_modules(modules: Iterable[ModuleMemory], style: Style = PLAIN) -> str:
    """A table of the modules, devices and phases with the highest peaks."""
    ordered = sorted(modules, key=lambda module: (-module.highest.peak_bytes, module.module, module.phase))
    if not ordered:
        return "No module was seen running."
    parts: list[RenderableType] = [_table(ordered[:_LISTED], style.width)]
    if (more := len(ordered) - _LISTED) > 0:
        parts.append(f"… and {more:,} more: --json has them all")
    return rendered(parts, style)


def _table(modules: Sequence[ModuleMemory], width: int) -> Table:
    """With all figures where they fit into this many columns; without the last two, names have more room."""
    from rich.console import Console

    whole = _with_figures(modules, len(_FIGURES))
    fits = Console(width=_ANY_WIDTH).measure(whole).maximum <= width
    return whole if fits else _with_figures(modules, len(_FIGURES) - 2)


def _with_figures(modules: Sequence[ModuleMemory], count: int) -> Table:
    several = len({module.device for module in modules}) > 1
    table = new_table("", "module", "phase", ">calls", *(f">{figure}" for figure in _FIGURES[:count]))
    for module in modules:
        name = f"{module.module} on {module.device}" if several else module.module
        sizes = map(_shown, _sizes(module.highest)[:count])
        table.add_row(printable(name), module.phase.name.lower(), f"{module.passes:,}", *sizes)
    return table


def _sizes(one: ModulePass) -> tuple[int | None, ...]:
    """What `_FIGURES` name."""
    before = sum(one.before.values())
    return before, one.peak_bytes, one.activation_bytes, one.input_bytes, one.output_bytes


def _shown(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else human_bytes(size_bytes)
