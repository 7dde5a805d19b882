"""Tallies and exponential histograms: what OpenTelemetry's SDK would have made of the same values."""

from __future__ import annotations

import collections

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from memexport.exporters._otel_histogram import ExponentialHistogram, Tally

# Near 2^50 the SDK takes a value that ends a bucket for one of the next.
SIZES = st.one_of(st.integers(0, 70), st.integers(0, 2**40), st.integers(0, 50).map(lambda power: 2**power))


def tally(values):
    counted = Tally()
    counted.add(np.array(values))
    return counted


def of_the_sdk(values):
    """The SDK's point for these values."""
    reader = InMemoryMetricReader()
    view = View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    histogram = provider.get_meter("test").create_histogram("sizes")
    for value in values:
        histogram.record(value)
    return reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]


def filled_buckets(scale, offset, counts):
    """Buckets by their upper bounds; an empty one at either end says nothing."""
    return {2 ** ((offset + i + 1) * 2.0**-scale): count for i, count in enumerate(counts) if count}


@given(st.lists(st.lists(SIZES, min_size=1), min_size=1, max_size=4))
def test_buckets_are_those_of_the_sdk(parts):
    ours = ExponentialHistogram()
    for values in parts:
        ours.add(tally(values))
    values = [value for part in parts for value in part]
    found, expected = ours.buckets(), of_the_sdk(values)
    assert (found.count, found.sum, found.min, found.max, found.zeros) == (
        len(values), sum(values), min(values), max(values), values.count(0),
    )  # fmt: skip
    assert found.scale == expected.scale
    assert filled_buckets(found.scale, found.offset, found.counts) == filled_buckets(
        expected.scale, expected.positive.offset, expected.positive.bucket_counts
    )


def test_every_value_lies_in_its_bucket():
    histogram = ExponentialHistogram()
    histogram.add(tally([1, 3, 4096, 4097, 10**12]))
    buckets = histogram.buckets()
    base = 2**2.0**-buckets.scale
    for value in (1, 3, 4096, 4097, 10**12):
        index = int(np.ceil(np.log(value) / np.log(base) - 1e-9)) - 1 - buckets.offset
        assert buckets.counts[index] >= 1


def test_buckets_are_the_same_object_until_there_is_more():
    histogram = ExponentialHistogram()
    histogram.add(tally([1, 2]))
    before = histogram.buckets()
    histogram.add(Tally())
    assert histogram.buckets() is before
    histogram.add(tally([3]))
    assert histogram.buckets().count == 3
    assert before.count == 2


@given(st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=400))
def test_a_tally_counts_every_value_however_it_comes(parts):
    counted = Tally()
    for part in parts:
        counted.add(np.array(part, np.int64))
    values, counts = (column.tolist() for column in counted.counted)
    assert dict(zip(values, counts, strict=True)) == collections.Counter(v for part in parts for v in part)
    assert values == sorted(values)
    assert bool(counted) == bool(values)
