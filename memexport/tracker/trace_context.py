"""The OpenTelemetry span that the program is in: read at the boundaries of training, logged when it changes.

OpenTelemetry is never imported for it: a program that has spans has done so itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from memexport.tracker import rows
from memexport.tracker.chunk import Derived, Ints, Rows
from memexport.tracker.rows import Labels

_API: Final = "opentelemetry.trace"
_NO_SPAN: Final = (0, 0)


class TraceReader:
    """Logs a TRACE row when another span is active than the last time; runs in the training thread.

    Args:
        labels: interns the traceparents (https://www.w3.org/TR/trace-context/#traceparent-header).
        push: takes rows (`rows.ROW`).

    Attributes:
        reads_boundaries: look at boundaries too, not only where an error was raised. The texts of spans stay
            in memory as long as the recording runs.
    """

    def __init__(self, labels: Labels, push: Callable[[bytes], None]) -> None:
        self._labels = labels
        self._push = push
        self._latest = _NO_SPAN
        self.reads_boundaries = True

    def read(self, context: int, *, or_stay: bool = False) -> None:
        """Look for the active span; without one, `or_stay` leaves it at the last. Raises nothing."""
        api = sys.modules.get(_API)
        if api is None or not (self.reads_boundaries or or_stay):
            return
        try:
            span = api.get_current_span().get_span_context()
            ids = (span.trace_id, span.span_id) if span.is_valid else _NO_SPAN
            if ids == self._latest or (or_stay and ids == _NO_SPAN):
                return
            text = f"00-{ids[0]:032x}-{ids[1]:016x}-{span.trace_flags:02x}"
        except Exception:  # the API may be half imported, the span of any kind
            return
        self._latest = ids
        found = 0 if ids == _NO_SPAN else self._labels.text(text)
        self._push(rows.ROW.pack(rows.TRACE, context, time.perf_counter_ns(), found, 0))


class ActiveTraces:
    """Which traceparent was active at each row, from chunk to chunk.

    Attributes:
        seen: there was one.
    """

    def __init__(self) -> None:
        self.seen = False
        self._latest = 0

    def at(self, chunk: Rows) -> Ints | None:
        """The string id for each row, 0 for none; None if there is none for any of them."""
        changes = np.flatnonzero(chunk.kind == rows.TRACE)
        if not len(changes) and not self._latest:
            return None
        ids = np.concatenate([[self._latest], chunk.first[changes]])
        self.seen = True
        self._latest = int(ids[-1])
        return np.repeat(ids, np.diff(changes, prepend=0, append=len(chunk)))


def give_to_markers(derived: list[Derived], active: Ints) -> None:
    """Put into each MARKER among them what was active at its row."""
    for event in derived:
        if event.values["kind"] == rows.MARKER:
            event.values["inputs"] = int(active[max(event.after, 0)])
