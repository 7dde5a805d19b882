"""What OpenTelemetry's exporters log while they send for us is kept back, as the reason of a failure.

They log every attempt. Who sends through them here says it once, in memexport's own words; the application's
own exporters, which share these loggers, are left alone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Final

LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.sdk._shared_internal",
)
"""Where the OTLP exporters log, and the queue before them."""


class _KeptBack(logging.Filter):
    """Takes the records of the threads that are in `kept_back`; installed once, and never removed."""

    def __init__(self) -> None:
        super().__init__()
        self.of_thread: dict[int, list[str]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        messages = self.of_thread.get(threading.get_ident())
        if messages is not None:
            messages.append(record.getMessage())
        return messages is None


_FILTER: Final = _KeptBack()


@contextlib.contextmanager
def kept_back() -> Iterator[list[str]]:
    """What this thread's exporters log in the block is not logged but put into the list."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if _FILTER not in logger.filters:
            # First, for what others let through or not is then of no concern.
            logger.filters.insert(0, _FILTER)
    messages: list[str] = []
    _FILTER.of_thread[threading.get_ident()] = messages
    try:
        yield messages
    finally:
        del _FILTER.of_thread[threading.get_ident()]
