"""Encodes frames as OTLP requests, all points of a metric at once.

A point of a number is two eight-byte numbers in what never changes: its attributes, the beginning, tags. So
the points of a metric are a template that is filled for every frame. Everything rare is left to protobuf.

https://github.com/open-telemetry/opentelemetry-proto
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from memexport.exporters._otel_histogram import Buckets
from memexport.exporters._otel_metrics import SCOPE, Instrument, Metric
from memexport.exporters._otel_snapshot import Attributes, Ints, Numbers
from memexport.exporters._otlp_frames import Frame
from memexport.exporters._otlp_resource import Facts, version
from memexport.wire import FIXED64, LENGTH_DELIMITED, encode_varint, filled, tag

_CUMULATIVE: Final = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE

# Field numbers of metrics.proto.
_RESOURCE_METRICS: Final = 1
_SCOPE_METRICS: Final = 2
_METRICS: Final = 2
_DATA_POINTS: Final = 1
_GAUGE, _SUM, _EXPONENTIAL_HISTOGRAM = 5, 7, 10
_START_TIME, _TIME, _AS_INT, _POINT_ATTRIBUTES = 2, 3, 6, 7


class _Template(NamedTuple):
    """The points of one metric at one time; `places` are of each point's time and value, in turn."""

    content: bytes
    places: Ints


class RequestEncoder:
    """Encodes frames of one recording.

    Args:
        begin_ns: when the recording began.
        resource: the attributes of the process of each rank.
    """

    def __init__(self, begin_ns: int, resource: Callable[[int], Facts]) -> None:
        self._begin_ns = begin_ns
        self._resource = resource
        self._templates: dict[tuple[int, Metric, int], _Template] = {}
        self._histograms: dict[tuple[int, Metric, Attributes], tuple[Buckets, bytes]] = {}

    def encode(self, frames: Iterable[Frame]) -> bytes:
        """An ExportMetricsServiceRequest (or MetricsData, which is the same) of these frames, in order."""
        by_rank: dict[int, list[Frame]] = {}
        for frame in frames:
            by_rank.setdefault(frame.rank, []).append(frame)
        return b"".join(
            _field(_RESOURCE_METRICS, self._process(rank, of_rank)) for rank, of_rank in by_rank.items()
        )

    def _process(self, rank: int, frames: Sequence[Frame]) -> bytes:
        resource = resource_pb2.Resource(attributes=_key_values(self._resource(rank).items()))
        scope = common_pb2.InstrumentationScope(name=SCOPE, version=version())
        scope_metrics = [metrics_pb2.ScopeMetrics(scope=scope).SerializeToString()]
        scope_metrics += [_field(_METRICS, metric) for metric in self._metrics(rank, frames)]
        resource_metrics = metrics_pb2.ResourceMetrics(resource=resource).SerializeToString()
        return resource_metrics + _field(_SCOPE_METRICS, b"".join(scope_metrics))

    def _metrics(self, rank: int, frames: Sequence[Frame]) -> Iterator[bytes]:
        numbers: dict[Metric, list[tuple[int, Numbers]]] = {}
        histograms: dict[Metric, list[bytes]] = {}
        for frame in frames:
            for found in frame.numbers:
                numbers.setdefault(found.metric, []).append((frame.time_unix_ns, found))
            for histogram in frame.histograms:
                points = histograms.setdefault(histogram.metric, [])
                for attributes, buckets in zip(histogram.attributes, histogram.buckets, strict=True):
                    body = self._histogram_point(rank, histogram.metric, attributes, buckets)
                    points.append(_field(_DATA_POINTS, body + _fixed64(_TIME, frame.time_unix_ns)))
        for metric, of_metric in numbers.items():
            yield self._number_metric(rank, metric, of_metric)
        for metric, points in histograms.items():
            options = metrics_pb2.ExponentialHistogram(aggregation_temporality=_CUMULATIVE)
            data = options.SerializeToString() + b"".join(points)
            yield _described(metric) + _field(_EXPONENTIAL_HISTOGRAM, data)

    def _number_metric(self, rank: int, metric: Metric, numbers: list[tuple[int, Numbers]]) -> bytes:
        points = []
        for series, same in itertools.groupby(numbers, key=lambda one: len(one[1].attributes)):
            run = list(same)
            template = self._templates.get((rank, metric, series))
            if template is None:
                template = self._template(metric, run[0][1].attributes)
                self._templates[rank, metric, series] = template
            content = np.empty((len(run), 2 * series), np.int64)
            content[:, 0::2] = np.array([time for time, _ in run])[:, np.newaxis]
            content[:, 1::2] = [found.values for _, found in run]
            points.append(filled(template.content, template.places, content).tobytes())
        if metric.instrument is Instrument.GAUGE:
            return _described(metric) + _field(_GAUGE, b"".join(points))
        monotonic = metric.instrument is Instrument.COUNTER
        options = metrics_pb2.Sum(aggregation_temporality=_CUMULATIVE, is_monotonic=monotonic)
        return _described(metric) + _field(_SUM, b"".join([*points, options.SerializeToString()]))

    def _template(self, metric: Metric, attributes: Sequence[Attributes]) -> _Template:
        # What a gauge shows has no beginning.
        since = b"" if metric.instrument is Instrument.GAUGE else _fixed64(_START_TIME, self._begin_ns)
        content, places = bytearray(), []
        for of_series in attributes:
            number = metrics_pb2.NumberDataPoint(attributes=_key_values(of_series)).SerializeToString()
            body = since + _fixed64(_TIME, 0) + _fixed64(_AS_INT, 0)
            content += tag(_DATA_POINTS, LENGTH_DELIMITED) + encode_varint(len(body) + len(number)) + body
            places += [len(content) - 17, len(content) - 8]
            content += number
        return _Template(bytes(content), np.array(places, np.int64))

    def _histogram_point(self, rank: int, metric: Metric, attributes: Attributes, buckets: Buckets) -> bytes:
        """All of it but its time; most have not changed since the frame before."""
        before = self._histograms.get((rank, metric, attributes))
        if before is not None and before[0] is buckets:
            return before[1]
        point = metrics_pb2.ExponentialHistogramDataPoint(
            attributes=_key_values(attributes),
            start_time_unix_nano=self._begin_ns,
            count=buckets.count,
            sum=buckets.sum,
            scale=buckets.scale,
            zero_count=buckets.zeros,
            min=buckets.min,
            max=buckets.max,
        )
        if buckets.counts:
            point.positive.offset = buckets.offset
            point.positive.bucket_counts.extend(buckets.counts)
        body = point.SerializeToString()
        self._histograms[rank, metric, attributes] = (buckets, body)
        return body


def _described(metric: Metric) -> bytes:
    described = metrics_pb2.Metric(name=metric.name, description=metric.description, unit=metric.unit)
    return described.SerializeToString()


def _key_values(items: Iterable[tuple[str, str | int]]) -> Iterator[common_pb2.KeyValue]:
    for key, value in items:
        kind = {"int_value": value} if isinstance(value, int) else {"string_value": value}
        yield common_pb2.KeyValue(key=key, value=common_pb2.AnyValue(**kind))


def _field(number: int, content: bytes) -> bytes:
    return tag(number, LENGTH_DELIMITED) + encode_varint(len(content)) + content


def _fixed64(number: int, value: int) -> bytes:
    return tag(number, FIXED64) + value.to_bytes(8, "little", signed=True)
