"""Snapshots: bytes per device and category, and how they are displayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import torch

from memexport.compat._categories import TOTAL, RefType
from memexport.model import Column

Snapshot = dict[torch.device, dict[RefType | str, int]]
"""By device and category, with their "Total"; a device without any bytes is left out."""

_State = TypeVar("_State", bound=str)
_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def snapshot_of(
    rows: Iterable[Column], devices: Sequence[torch.device], members: Sequence[RefType]
) -> Snapshot:
    """The snapshot of a row of bytes per device, each by place among `members`."""
    snapshot: Snapshot = {}
    for device, row in zip(devices, rows, strict=False):
        values = row[: len(members)].tolist()
        if sum(values):
            snapshot[device] = {**dict(zip(members, values, strict=True)), TOTAL: sum(values)}
    return snapshot


def rendered(snapshot: Snapshot, units: str) -> str:
    """A line for each device and each of its categories.

    Raises:
        ValueError: no such unit.
    """
    if not snapshot:
        return "No memory tracked."
    lines = []
    for device, row in _shown(snapshot, units):
        lines.append(f"Device: {device}")
        lines += [f"\t{name}: {value}" for name, value in row.items()]
    return "\n".join(lines)


def rendered_table(snapshot: Snapshot, units: str) -> str:
    """A reStructuredText table with a row for each device.

    Raises:
        ValueError: no such unit.
    """
    if not snapshot:
        return "No memory tracked."
    names = [str(name) for name in next(iter(snapshot.values()))]
    rows = [[str(device), *row.values()] for device, row in _shown(snapshot, units)]
    return _table(["Device", *names], rows)


def rendered_states(states: Mapping[_State, Sequence[Snapshot]], units: str) -> str:
    """The numbered snapshots of each state of a module, and an empty line."""
    lines = []
    for state, snapshots in states.items():
        lines.append(str(state))
        for number, snapshot in enumerate(snapshots, 1):
            lines += [f"# {number}:", rendered(snapshot, units)]
    return "\n".join([*lines, ""])


def rendered_states_table(states: Mapping[_State, Sequence[Snapshot]], units: str) -> str:
    """A reStructuredText table of them."""
    headers: list[str] = []
    rows = []
    for state, snapshots in states.items():
        for number, snapshot in enumerate(snapshots, 1):
            call = f"{state} # {number}"
            for device, row in _shown(snapshot, units):
                headers = ["State & Call", "Device", *row]
                rows.append([call, str(device), *row.values()])
                call = ""  # said once
    return _table(headers, rows)


def _shown(snapshot: Snapshot, units: str) -> Iterator[tuple[torch.device, dict[str, str]]]:
    """Each device with something to show, and its values as text."""
    if units not in _UNITS:
        raise ValueError(f"Unsupported unit: {units}. Supported units are: {', '.join(_UNITS)}")
    divisor = _UNITS[units]
    for device, row in snapshot.items():
        if _in_units(row[TOTAL], divisor) > 0:
            yield device, {str(name): f"{_in_units(value, divisor)} {units}" for name, value in row.items()}


def _in_units(value: int, divisor: int) -> float:
    return value if divisor == 1 else round(value / divisor, 2)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A simple table as the package tabulate writes it, format "rst"."""
    if not headers:
        return ""
    columns = zip(headers, *rows, strict=True)
    # tabulate leaves room beside a heading, and marks an empty first cell, which would continue a row.
    widths = [max(len(column[0]) + 2, *map(len, column)) for column in columns]
    rule = "  ".join("=" * width for width in widths)
    body = [_line([row[0] or "..", *row[1:]], widths) for row in rows]
    return "\n".join([rule, _line(headers, widths), rule, *body, rule])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
