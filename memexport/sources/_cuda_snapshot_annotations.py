"""The user's annotations in a torch.cuda memory snapshot, paired to spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memexport.sources._snapshot import Annotation


class Span(NamedTuple):
    """An annotated region; both times in microseconds."""

    name: str
    device: int
    begin_us: int
    end_us: int


class Spans:
    """Pairs STARTs with ENDs of the same name and device, the innermost first.

    What began before the recording begins with it; what was still going on ends with it.

    Attributes:
        all: ordered by their ends, and inner ones before those around them.
    """

    def __init__(self, annotations: Iterable[Annotation], first_us: int, last_us: int) -> None:
        self._bounds = first_us, last_us
        self._odd: Counter[str] = Counter()
        self.all = sorted(self._paired(annotations), key=lambda span: (span.end_us, -span.begin_us))

    def warnings(self) -> Iterator[str]:
        """What could not be paired."""
        if count := self._odd["START"]:
            yield f"{count} annotations do not end in this snapshot; they are shown up to its end"
        if count := self._odd["END"]:
            yield f"{count} annotations began before this snapshot; they are shown from its start"
        if count := self._odd["unknown"]:
            yield f"{count} annotations are neither a START nor an END, and are left out"

    def _paired(self, annotations: Iterable[Annotation]) -> Iterator[Span]:
        first_us, last_us = self._bounds
        open_us: dict[tuple[str, int], list[int]] = {}
        # Stable: a region that takes no time keeps its START before its END.
        for annotation in sorted(annotations, key=lambda annotation: annotation.time_us):
            name, stage, device, time_us = (
                annotation.name,
                annotation.stage,
                annotation.device,
                annotation.time_us,
            )
            begun = open_us.setdefault((name, device), [])
            if stage == "START":
                begun.append(time_us)
            elif stage != "END":
                self._odd["unknown"] += 1
            elif begun:
                yield Span(name, device, begun.pop(), time_us)
            else:
                self._odd["END"] += 1
                yield Span(name, device, min(first_us, time_us), time_us)
        for (name, device), begun in open_us.items():
            self._odd["START"] += len(begun)
            yield from (Span(name, device, time_us, max(last_us, time_us)) for time_us in begun)
