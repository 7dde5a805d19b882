"""What a trace's names mean: which are operators, steps, module calls, and which phase they are of."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from memexport.model import Phase, StringTable

MODULE_PREFIX: Final = "nn.Module: "
OPERATOR_CATEGORIES: Final = frozenset({"cpu_op", "Operator"})
"""Since torch 1.11, and before."""

SPAN_CATEGORIES: Final = OPERATOR_CATEGORIES | {"user_annotation"}

MAX_NAME: Final = 1_000
"""Longer names are cut: one is a template instance or a pasted text."""

_MAX_NAMES: Final = 2**20
_MAX_STEPS: Final = 2**16
_MAX_CHARACTERS: Final = 2**26
_NUMBERED: Final = re.compile(r"_\d+$")
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})$")
# torch's own annotations before 1.11, when they had the operators' category: "Optimizer.step#SGD.step".
_HOOK: Final = re.compile(r"(Optimizer\.\w+|enumerate\(DataLoader\))#")
_BACKWARD: Final = re.compile(r"autograd::engine::|torch::autograd::|\w+Backward\d*$")
_PHASES: Final = (
    (re.compile(r"Optimizer\.step#"), Phase.OPTIMIZER),
    (re.compile(r"Optimizer\.zero_grad#|enumerate\(DataLoader\)#"), Phase.OTHER),
)
# They get memory for the operator that calls them: what an `aten::mm` needs should be called its own.
_ALLOCATORS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "empty_quantized", "new_empty", "new_empty_strided",
        "resize_", "resize_as_",
    )
)  # fmt: skip


class Role(enum.IntEnum):
    """What an event of a kind is made into."""

    MEMORY = 0
    OUT_OF_MEMORY = 1
    OPERATOR = 2
    MODULE = 3
    STEP = 4
    ANNOTATION = 5


class TooManyError(Exception):
    """There are more of something than any program has: they alone would fill the memory."""


@dataclass(frozen=True)
class Kind:
    """What all events of one category and name have in common.

    Attributes:
        name: the string id that their events will have; of a module call, the class.
        phase: of what runs inside of it; UNKNOWN: it does not say.
        step: of a STEP, else −1.
        part: of a module call, what it adds to the module's path.
        for_caller: whether memory that it gets is called that of the operator around it.
    """

    role: Role
    name: int
    phase: Phase = Phase.UNKNOWN
    step: int = -1
    part: str = ""
    for_caller: bool = False


class Kinds(dict[tuple[str, str], int]):
    """The number of the kind of a (category, name); it is given one when it is first asked for.

    Attributes:
        list: the kinds by number. The first two are those of points in time: `Role.MEMORY` and
            `Role.OUT_OF_MEMORY`.
        steps: the numbers of those that are steps.
    """

    def __init__(self, strings: StringTable) -> None:
        super().__init__()
        self._strings = strings
        self._characters = 0
        self.steps: list[int] = []
        self.list = [Kind(Role.MEMORY, 0), Kind(Role.OUT_OF_MEMORY, strings.intern("out of memory"))]

    def __missing__(self, key: tuple[str, str]) -> int:
        category, name = key
        self._characters += len(name)
        if len(self.list) > _MAX_NAMES or self._characters > _MAX_CHARACTERS:
            raise TooManyError(f"has more than {_MAX_NAMES} different names, or very long ones")
        kind = self._kind(category, name)
        number = self[key] = len(self.list)
        self.list.append(kind)
        if kind.role == Role.STEP:
            self.steps.append(number)
        return number

    def _kind(self, category: str, name: str) -> Kind:
        intern = self._strings.intern
        shown = name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"
        if category == "python_function":
            part = shown.removeprefix(MODULE_PREFIX)
            return Kind(Role.MODULE, intern(_NUMBERED.sub("", part)), part=part)
        found = _STEP.match(name)
        if found and len(self.steps) < _MAX_STEPS:
            return Kind(Role.STEP, intern("step"), step=int(found[1]))
        phase = next((phase for pattern, phase in _PHASES if pattern.match(name)), Phase.UNKNOWN)
        if category not in OPERATOR_CATEGORIES or _HOOK.match(name):
            return Kind(Role.ANNOTATION, intern(shown), phase)
        if _BACKWARD.match(name):
            phase = Phase.BACKWARD
        return Kind(Role.OPERATOR, intern(shown), phase, for_caller=name in _ALLOCATORS)
