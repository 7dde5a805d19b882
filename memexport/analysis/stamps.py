"""The text that a tracker gives torch to keep with CUDA's allocations, and that a snapshot gives back."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from memexport.model import Phase

_TEXT: Final = re.compile(r"memexport phase=(\w+) operator=(\S+)(?: module=(.*))?", re.DOTALL)


class Stamp(NamedTuple):
    """Where an allocation was made."""

    phase: Phase
    operator: str
    module: str | None

    def text(self) -> str:
        """As torch keeps it: `memexport phase=forward operator=aten.mm.default module=layers.0.up`."""
        module = "" if self.module is None else f" module={self.module}"
        return f"memexport phase={self.phase.name.lower()} operator={self.operator}{module}"

    @staticmethod
    def parse(text: str) -> Stamp | None:
        """What the text says; None if it is not such a text."""
        found = _TEXT.fullmatch(text)
        if found is None or found[1].upper() not in Phase.__members__:
            return None
        return Stamp(Phase[found[1].upper()], found[2], found[3])
