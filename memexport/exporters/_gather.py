"""Fewer and larger batches, for an exporter whose work has a price per batch."""

from __future__ import annotations

from memexport.model import EventBatch


class Gathered:
    """Joins batches, in order, until enough events are together.

    Args:
        least_events: how many a joined batch has at least; 0: each batch is passed on as it comes.
    """

    def __init__(self, least_events: int) -> None:
        self._least_events = least_events
        self._waiting: list[EventBatch] = []
        self._events = 0

    def add(self, batch: EventBatch) -> EventBatch | None:
        """All that waits, this batch included; None while that is too little."""
        self._waiting.append(batch)
        self._events += len(batch)
        return self.rest() if self._events >= self._least_events else None

    def rest(self) -> EventBatch | None:
        """All that waits; None for nothing."""
        waiting, self._waiting, self._events = self._waiting, [], 0
        if len(waiting) <= 1:
            return waiting[0] if waiting else None
        return EventBatch.concat(waiting)
