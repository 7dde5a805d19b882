"""Records a value into an OpenTelemetry histogram as often as it occurred, at the price of once.

`Histogram.record` takes 7 µs a value, half of what the tracker needs for an operator, and operators allocate
the same sizes over and over. The API has no way to record a value n times. So here, and nowhere else, the
SDK's own aggregations are told the rest of the n at once. Whether that works with the installed SDK is tried
out first, on a histogram of our own. If not, and with other SDKs, every value is recorded one by one.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from memexport.exporters._otel_histogram import Tally

Attributes = Mapping[str, str]


def record(histogram: Histogram, tally: Tally, attributes: Attributes) -> None:
    """Record each value of the tally as often as it was counted.

    Of the SDK's locks none is held while this runs in an observable instrument's callback, and no other
    collection goes on: that is where it must be called.
    """
    if is_sdk_known() and _consumer(histogram) is not None:
        _record_many(histogram, tally, attributes)
    else:
        _record_each(histogram, tally, attributes)


@functools.cache
def is_sdk_known() -> bool:
    """Whether what is recorded at once arrives as if it had been recorded one by one."""
    tally = Tally()
    tally.add(np.array([0, 0, 3, 4096, 4096, 4096, 10**9, 10**9]))
    try:
        return _collected(_record_many, tally) == _collected(_record_each, tally)
    except Exception:  # whatever it is that has moved in the SDK
        return False


def _record_each(histogram: Histogram, tally: Tally, attributes: Attributes) -> None:
    for value, count in zip(*(column.tolist() for column in tally.counted), strict=True):
        for _ in range(count):
            histogram.record(value, attributes)


def _record_many(histogram: Histogram, tally: Tally, attributes: Attributes) -> None:
    for value, count in zip(*(column.tolist() for column in tally.counted), strict=True):
        histogram.record(value, attributes)
        if count > 1:
            for aggregation in _aggregations(histogram, attributes):
                with aggregation._lock:
                    _count_again(aggregation, value, count - 1)


def forget(histogram: Histogram) -> None:
    """Let the histogram begin anew: in a forked process, what it holds is of its parent."""
    if not is_sdk_known() or _consumer(histogram) is None:
        return
    for match in _matches(histogram):
        match._attributes_aggregation.clear()


def _consumer(histogram: Any) -> Any:
    return getattr(histogram, "_measurement_consumer", None)


def _matches(histogram: Any) -> Iterator[Any]:
    """The histogram in every view of every reader."""
    for storage in _consumer(histogram)._reader_storages.values():
        yield from storage._get_or_init_view_instrument_match(histogram)


def _aggregations(histogram: Any, attributes: Attributes) -> Iterator[Any]:
    """Where the views of every reader keep the series that was just recorded into."""
    from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes

    for match in _matches(histogram):
        kept = match._view._attribute_keys
        of_view = {key: value for key, value in attributes.items() if kept is None or key in kept}
        with match._lock:
            yield match._get_or_create_aggregation(_hash_attributes(of_view), of_view)


def _count_again(aggregation: Any, value: float, times: int) -> None:
    """Count a value that was just recorded once so many times more."""
    if hasattr(aggregation, "_boundaries"):
        aggregation._value[bisect.bisect_left(aggregation._boundaries, value)] += times
    elif hasattr(aggregation, "_value_positive"):
        if value == 0:
            aggregation._zero_count += times
        else:
            _count_in_bucket(aggregation._value_positive, aggregation._mapping.map_to_index(value), times)
        aggregation._count += times
    else:
        return  # it drops values, or keeps the last one
    aggregation._sum += value * times


def _count_in_bucket(buckets: Any, index: int, times: int) -> None:
    place = index - buckets.index_base
    buckets.increment_bucket(place + len(buckets.counts) if place < 0 else place, times)


def _collected(record_all: Callable[[Histogram, Tally, Attributes], None], tally: Tally) -> list[Any]:
    """What a reader sees of the tally, in buckets of either kind."""
    found = []
    exponential = View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
    for views in ([], [exponential]):
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], views=views, shutdown_on_exit=False)
        record_all(provider.get_meter("memexport").create_histogram("tried"), tally, {"a": "b"})
        collected: Any = reader.get_metrics_data()
        metric = collected.resource_metrics[0].scope_metrics[0].metrics[0]
        found += [replace(p, start_time_unix_nano=0, time_unix_nano=0) for p in metric.data.data_points]
    return found
