"""Which events are named after an operator."""

from __future__ import annotations

from typing import Final

import numpy as np

from memexport.model import Column, EventBatch, EventKind, StringTable

_ALWAYS: Final = np.isin(np.arange(256), (EventKind.OPERATOR, EventKind.ALLOCATION))


class OperatorNames:
    """Finds the operators of events: OPERATORs, ALLOCATIONs, and SAMPLEs taken inside of an operator.

    Such a SAMPLE has the operator's name, and torch's have a namespace ("aten.mm.default", "aten::mm"). The
    names of other readings ("device_free") have none.
    """

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings

    def of(self, batch: EventBatch, positions: Column) -> Column:
        """The ids of the operators of these events; 0 for an event without one."""
        kind, name = batch.kind[positions], batch.name[positions]
        named = _ALWAYS[kind]
        for row in np.flatnonzero(kind == EventKind.SAMPLE).tolist():
            named[row] = self._has_namespace(int(name[row]))
        return np.where(named, name, 0)

    def _has_namespace(self, name: int) -> bool:
        text = self._strings.get(name) or ""
        return "." in text or "::" in text
