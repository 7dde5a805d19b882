"""What grew from step to step, for the page of a summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memexport.analysis.page import cell, new_table, plural, signed_bytes
from memexport.analysis.text import human_bytes, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from memexport.analysis.growth import DeviceGrowth, Trend
    from memexport.analysis.summary import Summary


def growth_parts(summary: Summary) -> list[RenderableType]:
    """A table for each device with suspicious growth, a line for every other; nothing without steps."""
    parts: list[RenderableType] = []
    for name, growth in summary.growth.items():
        if growth is not None:
            parts += ["", _table(name, growth) if is_suspicious(growth) else steady_sentence(name, growth)]
    return parts


def is_suspicious(growth: DeviceGrowth) -> bool:
    """Whether the device as a whole or one of its modules is."""
    return growth.total.is_suspicious or bool(growth.suspects)


def steady_sentence(name: str, growth: DeviceGrowth) -> str:
    """What is said where nothing is suspicious."""
    slope = signed_bytes(growth.total.bytes_per_step)
    steps = plural(growth.steps_compared, "step")
    return f"{printable(name)} does not grow from step to step: {slope} a step at the ends of {steps}"


def growth_rows(growth: DeviceGrowth) -> list[tuple[str, str, str, str, str]]:
    """Whose, how much a step, from what, to what, in how many of the steps: the device's total first."""
    named = [("in all", growth.total), *((cell(row.module), row.trend) for row in growth.suspects)]
    return [(name, *_cells(trend, growth.steps_compared)) for name, trend in named]


def _table(name: str, growth: DeviceGrowth) -> Table:
    title = f"Live after each step on {printable(name)}: a leak?"
    table = new_table(title, "module", ">a step", ">first", ">last", ">rises")
    for row in growth_rows(growth):
        table.add_row(*row)
    return table


def _cells(trend: Trend, steps: int) -> tuple[str, str, str, str]:
    first, last = human_bytes(trend.first_bytes), human_bytes(trend.last_bytes)
    return signed_bytes(trend.bytes_per_step), first, last, f"{trend.rises} of {steps - 1}"
