"""Turns the names, counters and markers of a legacy MemoryTracker pickle into events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from memexport.model import (
    COLUMNS,
    INDEX_CLOCK_NS,
    NULLS,
    UNKNOWN_SIZE,
    Column,
    EventBatch,
    EventKind,
    Phase,
    StringTable,
)


class OperatorName(NamedTuple):
    """A recorded name in its parts.

    Attributes:
        operator: "aten.add.Tensor"; the whole name if it cannot be parsed.
        module: the module whose forward was called last, "" for the root; None before any.
    """

    operator: str
    module: str | None


def parse_name(name: str) -> OperatorName:
    """Take apart "<module>.forward.<operator>.<overload>_<running count>", from the right.

    torch leaves the operator's namespace out; all but a few are in "aten", which is what is put there.
    """
    path, _, count = name.rpartition("_")
    parts = path.rsplit(".", 2)
    if not count.isdecimal() or len(parts) < 2:
        return OperatorName(name, None)
    if len(parts) == 3:
        prefix, operator = parts[0], f"aten.{parts[1]}.{parts[2]}"
        if not prefix:
            return OperatorName(operator, None)
        if prefix.endswith(".forward"):
            return OperatorName(operator, prefix.removesuffix(".forward"))
    # A higher-order operator has no overload: "0.forward.flex_attention_3".
    prefix, _, operator = path.rpartition(".")
    if prefix.endswith(".forward"):
        return OperatorName(operator, prefix.removesuffix(".forward"))
    return OperatorName(name if prefix else operator, None)


def _if_in_backward(name: str) -> str | None:
    """As it would be in forward, if `memexport.compat.MemoryTracker` wrote it; None for torch's.

    Only that one writes "<module>.backward.<…>", and its modules are right in every pass.
    """
    module, written, operator = name.rpartition(".backward.")
    return f"{module}.forward.{operator}" if written and ".forward." not in operator else None


class Operators:
    """The operators' columns, and what had to be left open in them."""

    def __init__(self, names: list[str], phases: Column, strings: StringTable) -> None:
        self._phases = phases
        self._open: Counter[str] = Counter()
        self._name = np.zeros(len(names), np.uint32)
        self._module = np.zeros(len(names), np.uint32)
        for index, (name, phase) in enumerate(zip(names, phases.tolist(), strict=True)):
            in_backward = _if_in_backward(name)
            parsed = parse_name(in_backward or name)
            self._name[index] = strings.intern(parsed.operator)
            module = self._trusted_module(parsed.module, Phase.FORWARD if in_backward else phase)
            self._module[index] = strings.intern(module) if module else 0

    def _trusted_module(self, module: str | None, phase: int) -> str | None:
        if module is None:
            return None
        if phase == Phase.BACKWARD:
            self._open["backward"] += 1
            return None
        if phase == Phase.UNKNOWN:
            self._open["earlier"] += 1
            return None
        if not module:
            self._open["root"] += 1
        return module

    def columns(self, counters: list[Column]) -> dict[str, Column]:
        """The columns that are known, for operators only."""
        allocated, active, reserved = counters
        size = np.full(len(allocated), UNKNOWN_SIZE)
        size[1:] = np.diff(allocated)
        return {
            "kind": np.full(len(allocated), EventKind.OPERATOR, np.uint8),
            "name": self._name,
            "module": self._module,
            "phase": self._phases,
            "device": np.zeros(len(allocated), np.int32),
            "size_bytes": size,
            "allocated_bytes": allocated,
            "active_bytes": active,
            "reserved_bytes": reserved,
        }

    def warnings(self, unknown_keys: list[str]) -> Iterator[str]:
        """What the reader has to know, in order of weight."""
        if count := self._open["backward"]:
            yield f"the module of {count} operators after forward is not known: the format lacks it"
        if count := self._open["earlier"]:
            yield (
                f"phase and module of {count} operators before the last forward are not known: "
                "this format only marks where the last one began and ended"
            )
        if count := self._open["root"]:
            yield f"{count} operators of the root module have no module: this format does not record its name"
        if unknown_keys:
            yield f"keys that memexport does not know were ignored: {', '.join(unknown_keys)[:200]}"


def phases_of(operators: int, markers: dict[str, int]) -> Column:
    """The phase of each operator, from where the last forward began and ended.

    What follows is called BACKWARD, up to a forward that began but did not end.
    """
    start, boundary = markers.get("fw_start"), markers.get("fw_bw_boundary")
    phases = np.full(operators, Phase.UNKNOWN, np.uint8)
    if boundary is not None:
        phases[boundary:] = Phase.BACKWARD
        if start is None or start <= boundary:
            phases[start or 0 : boundary] = Phase.FORWARD
    if start is not None and (boundary is None or start > boundary):
        phases[start:] = Phase.FORWARD
    return phases


def with_markers(columns: dict[str, Column], markers: dict[str, int], strings: StringTable) -> EventBatch:
    """The operators with each marker before the one that it points to, on a clock that counts events."""
    at = np.array(list(markers.values()), np.int64)
    rows = {name: np.insert(column, at, NULLS[name]) for name, column in columns.items()}
    inserted = at + np.arange(len(at))
    rows["kind"][inserted] = EventKind.MARKER
    rows["name"][inserted] = [strings.intern(name) for name in markers]
    rows["time_unix_ns"] = np.arange(len(rows["kind"]), dtype=COLUMNS["time_unix_ns"]) * INDEX_CLOCK_NS
    return EventBatch(**rows)
