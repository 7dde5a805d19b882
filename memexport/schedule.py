"""Which training steps are recorded in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from memexport.errors import UsageError

Range = tuple[int, int]

_ALL: Final[tuple[Range, ...]] = ((0, 2**62),)


@dataclass(frozen=True)
class Schedule:
    """Steps count from 0.

    Attributes:
        every: of so many steps, counted from the first of a range, the first `window` are recorded; None:
            all of them.
        window: how many steps one after another.
        ranges: only steps in one of these: from the first number up to but without the second. Ascending.
    """

    every: int | None = None
    window: int = 1
    ranges: tuple[Range, ...] = _ALL

    @staticmethod
    def of(every: int | None, window: int | None, steps: Range | Sequence[Range] | None) -> Schedule | None:
        """What somebody asks for; None if that is every step.

        Raises:
            UsageError: a number is out of its range, or ranges overlap.
        """
        if every is None and steps is None:
            if window is not None:
                raise UsageError("window says how long what `every` repeats is", hint="every=1000, window=2")
            return None
        if window is not None and every is None:
            raise UsageError("window needs every", hint="steps says itself where it begins and ends")
        length = 1 if window is None else window
        if every is not None and not 1 <= length < every:
            raise UsageError(f"a window of {length} in every {every} steps leaves none out, or all")
        return Schedule(every, length, _ALL if steps is None else _ranges(steps))

    def records(self, step: int) -> bool:
        """Whether this step is recorded in detail."""
        for begin, end in self.ranges:
            if begin <= step < end:
                return self.every is None or (step - begin) % self.every < self.window
        return False

    def next_change(self, step: int) -> int | None:
        """The first step after this one that is recorded and this one is not, or the other way round."""
        recorded = self.records(step)
        later: int | None = step
        while later is not None and self.records(later) == recorded:
            later = min((place for place in self._edges(later) if place > later), default=None)
        return later

    def as_text(self) -> dict[str, str]:
        """For the recording's options."""
        ranges = "" if self.ranges == _ALL else ",".join(f"{begin}:{end}" for begin, end in self.ranges)
        given = {"every": str(self.every or ""), "window": str(self.window), "steps": ranges}
        return {name: text for name, text in given.items() if text and (name != "window" or self.every)}

    def _edges(self, step: int) -> Iterator[int]:
        """Where the answer may change after this step; the nearest are among them."""
        for begin, end in self.ranges:
            yield from (begin, end)
            if self.every is not None and begin <= step < end:
                window = begin + (step - begin) // self.every * self.every
                yield from (min(window + self.window, end), min(window + self.every, end))


def _ranges(steps: Range | Sequence[Range]) -> tuple[Range, ...]:
    if not steps:
        raise UsageError("steps has no range", hint="steps=(0, 10)")
    pairs: Sequence[Any] = (steps,) if isinstance(steps[0], int) else steps
    ranges = tuple((int(begin), int(end)) for begin, end in pairs)
    before = 0
    for begin, end in ranges:
        if not before <= begin < end:
            raise UsageError(
                f"steps {begin}:{end} is no range after {before}",
                hint="from A up to but without B, in ascending order",
            )
        before = end
    return ranges
