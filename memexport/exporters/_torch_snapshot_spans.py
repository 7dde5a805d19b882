"""The spans of a recording as the annotations of a torch snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from memexport.exporters import _titles
from memexport.exporters._pickle_opcodes import Value
from memexport.model import EventBatch, EventKind, StringTable

Numbers = npt.NDArray[Any]


class Annotations:
    """Steps, phases, modules and the user's own, in memory: they are few beside the allocations."""

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._spans: list[tuple[Numbers, ...]] = []

    def add(self, batch: EventBatch, devices: Numbers) -> None:
        """Take the SPANs of a batch; `devices` gives the index in the snapshot for each event of it."""
        rows = np.flatnonzero(batch.kind == EventKind.SPAN)
        if not len(rows):
            return
        spans = batch.select(rows)
        titles = _titles.titles(spans, self._strings)
        begin_us = spans.time_unix_ns // 1_000
        end_us = (spans.time_unix_ns + np.maximum(spans.duration_ns, 0)) // 1_000
        self._spans.append((begin_us, end_us, titles.kind, titles.name, devices[rows]))

    def entries(self) -> Iterator[dict[str, Value]]:
        """A START and an END of each, by time; where that is the same, of each span the START first."""
        if not self._spans:
            return
        begin_us, end_us, kind, name, device = map(np.concatenate, zip(*self._spans, strict=True))
        times = np.stack((begin_us, end_us), axis=1).ravel()
        for place in np.argsort(times, kind="stable").tolist():
            span, is_end = divmod(place, 2)
            yield {
                "stage": "END" if is_end else "START",
                "name": _titles.label(int(kind[span]), int(name[span]), self._strings),
                "device": int(device[span]),
                "time_us": int(times[place]),
            }
