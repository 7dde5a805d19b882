"""Recording a value n times at once is recording it n times, in the SDK's own aggregations."""

from __future__ import annotations

import numpy as np
import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import DropAggregation, ExponentialBucketHistogramAggregation, View

from memexport.exporters import _otel_bulk as bulk
from memexport.exporters._otel_histogram import Tally

VALUES = [0] * 5 + [3] + [512] * 100 + [4096] * 7 + [10**9] * 2


def tally(values=VALUES):
    counted = Tally()
    counted.add(np.array(values))
    return counted


def histogram_of(*views, delta=False):
    """A histogram and its reader."""
    temporality = {Histogram: AggregationTemporality.DELTA} if delta else {}
    reader = InMemoryMetricReader(preferred_temporality=temporality)
    provider = MeterProvider([reader], views=views, shutdown_on_exit=False)
    return provider.get_meter("test").create_histogram("sizes"), reader


def points(reader):
    """The counts and sums by attributes."""
    data = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics if data else []
    return {
        tuple(point.attributes.items()): (point.count, point.sum)
        for m in metrics
        for point in m.data.data_points
    }


def test_the_installed_sdk_is_known():
    """If this fails, a new version has moved what `_otel_bulk` uses; until then values are recorded one by
    one, which is right but slow. See the test below for what is missing."""
    assert bulk.is_sdk_known()


def test_the_parts_of_the_sdk_that_are_used_are_where_they_were():
    histogram, _ = histogram_of()
    histogram.record(5, {"a": "b"})
    (match,) = bulk._matches(histogram)
    for name in ("_attributes_aggregation", "_lock", "_get_or_create_aggregation", "_view"):
        assert hasattr(match, name), name
    assert hasattr(match._view, "_attribute_keys")
    (explicit,) = bulk._aggregations(histogram, {"a": "b"})
    for name in ("_boundaries", "_value", "_sum", "_lock"):
        assert hasattr(explicit, name), name
    histogram, _ = histogram_of(
        View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
    )
    histogram.record(5, {"a": "b"})
    (exponential,) = bulk._aggregations(histogram, {"a": "b"})
    for name in ("_value_positive", "_zero_count", "_mapping", "_count", "_sum", "_lock"):
        assert hasattr(exponential, name), name
    for name in ("index_base", "counts", "increment_bucket"):
        assert hasattr(exponential._value_positive, name), name


@pytest.mark.parametrize("delta", [False, True])
def test_collections_go_on_from_one_another(delta):
    exponential = View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
    histogram, reader = histogram_of(exponential, delta=delta)
    for number in (1, 2, 3):
        bulk.record(histogram, tally(), {"a": "b"})
        times = 1 if delta else number
        assert points(reader) == {(("a", "b"),): (len(VALUES) * times, sum(VALUES) * times)}


def test_attributes_that_a_view_leaves_out_are_added_up():
    histogram, reader = histogram_of(View(instrument_name="*", attribute_keys={"a"}))
    for phase in ("forward", "backward"):
        bulk.record(histogram, tally(), {"a": "b", "phase": phase})
    assert points(reader) == {(("a", "b"),): (2 * len(VALUES), 2 * sum(VALUES))}


def test_a_view_may_drop_the_histogram_or_have_it_twice():
    histogram, reader = histogram_of(View(instrument_name="*", aggregation=DropAggregation()))
    bulk.record(histogram, tally(), {})
    assert points(reader) == {}
    twice = [View(instrument_name="sizes", name=name) for name in ("one", "other")]
    histogram, reader = histogram_of(*twice)
    bulk.record(histogram, tally(), {})
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    assert {m.name: m.data.data_points[0].count for m in metrics} == {
        "one": len(VALUES),
        "other": len(VALUES),
    }


def test_too_many_attribute_sets_overflow_as_they_would():
    histogram, reader = histogram_of()
    few = tally([5, 5, 5])
    for number in range(2_100):
        bulk.record(histogram, few, {"a": str(number)})
    found = points(reader)
    assert sum(count for count, _ in found.values()) == 6_300
    assert found[(("otel.metric.overflow", True),)] == (300, 1500)


def test_another_sdk_gets_every_value():
    class Histogram:
        def __init__(self):
            self.recorded = []

        def record(self, value, attributes):
            self.recorded.append(value)

    histogram = Histogram()
    bulk.record(histogram, tally(), {})
    assert sorted(histogram.recorded) == VALUES


def test_what_is_forgotten_begins_anew():
    histogram, reader = histogram_of()
    bulk.record(histogram, tally(), {"a": "b"})
    bulk.forget(histogram)
    assert points(reader) == {}
    bulk.record(histogram, tally([1]), {"a": "b"})
    assert points(reader) == {(("a", "b"),): (1, 1)}
