"""The instruments of a MeterProvider, made once; one recording after the other feeds them."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

from memexport.exporters import _otel_bulk
from memexport.exporters._otel_feed import Feed, Values
from memexport.exporters._otel_metrics import METRICS, SCOPE, Instrument, Metric
from memexport.exporters._otel_snapshot import Tallied
from memexport.exporters._otlp_resource import version

_SIZE_BOUNDS: Final = tuple(4.0**power for power in range(4, 18))
"""For those who want explicit buckets: from 256 bytes to 16 GiB."""


class Instruments:
    """All instruments of one meter. An SDK makes each only once, so they outlive the recordings.

    Counters go on from where the recording before has left them: a total must not fall.
    """

    def __init__(self, meter: Meter) -> None:
        self._is_free = True
        self._feed: Feed | None = None
        self._counted: dict[Metric, Values] = {}
        self._histograms: dict[Metric, Histogram] = {}
        for metric in METRICS:
            self._make(meter, metric)

    def reserve(self) -> bool:
        """Claim them for a recording; false if another one has them."""
        was_free, self._is_free = self._is_free, False
        return was_free

    def feed_from(self, feed: Feed) -> None:
        """Let this recording feed them."""
        self._feed = feed

    def let_go(self) -> None:
        """The recording is over; nothing is observed until the next."""
        feed, self._feed = self._feed, None
        if feed is not None:
            for metric in METRICS:
                if metric.instrument is Instrument.COUNTER:
                    self._counted[metric] = self._added_up(metric, feed.values(metric))
        self._is_free = True

    def forget(self) -> None:
        """In a forked process: nothing was recorded here."""
        for histogram in self._histograms.values():
            _otel_bulk.forget(histogram)

    def record(self, tallied: Tallied) -> None:
        """Record what was counted for a histogram."""
        histogram = self._histograms[tallied.metric]
        _otel_bulk.record(histogram, tallied.tally, dict(tallied.attributes))

    def _make(self, meter: Meter, metric: Metric) -> None:
        named = {"name": metric.name, "unit": metric.unit, "description": metric.description}
        callbacks = [functools.partial(self._observe, metric)]
        match metric.instrument:
            case Instrument.UP_DOWN_COUNTER:
                meter.create_observable_up_down_counter(callbacks=callbacks, **named)
            case Instrument.GAUGE:
                meter.create_observable_gauge(callbacks=callbacks, **named)
            case Instrument.COUNTER:
                meter.create_observable_counter(callbacks=callbacks, **named)
            case Instrument.HISTOGRAM:
                bounds = _SIZE_BOUNDS if metric.unit == "By" else None
                self._histograms[metric] = meter.create_histogram(
                    explicit_bucket_boundaries_advisory=bounds, **named
                )

    def _observe(self, metric: Metric, _: CallbackOptions) -> Iterable[Observation]:
        feed = self._feed
        if feed is None:
            return []
        values = feed.values(metric)
        if metric.instrument is Instrument.COUNTER:
            values = self._added_up(metric, values)
        return [Observation(value, dict(attributes)) for attributes, value in values.items()]

    def _added_up(self, metric: Metric, values: Values) -> Values:
        before = self._counted.get(metric, {})
        return before | {attributes: before.get(attributes, 0) + now for attributes, now in values.items()}


class InstrumentsOfProviders:
    """The instruments of every MeterProvider that was ever used, as long as it lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: weakref.WeakKeyDictionary[Any, list[Instruments]] = weakref.WeakKeyDictionary()

    def free_one(self, provider: MeterProvider) -> Instruments:
        """Instruments of this provider, reserved, that no other recording feeds.

        Recordings that run at the same time see the same memory, so they must not be added up: each further
        one gets a scope of its own, with a number as its attribute.
        """
        with self._lock:
            made = self._made.setdefault(provider, [])
            for instruments in made:
                if instruments.reserve():
                    return instruments
            number = {"memexport.tracker": len(made) + 1} if made else None
            made.append(Instruments(provider.get_meter(SCOPE, version(), attributes=number)))
            made[-1].reserve()
            return made[-1]

    def forget(self) -> None:
        """In a forked process: nothing was recorded here."""
        self._lock = threading.Lock()
        for made in list(self._made.values()):
            for instruments in made:
                instruments.forget()


INSTRUMENTS: Final = InstrumentsOfProviders()
"""Of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=INSTRUMENTS.forget)
