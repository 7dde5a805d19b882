"""Encodes frames as lines of OTLP's JSON: lowerCamelCase keys, enums as numbers, 64-bit integers as text.

https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from memexport.exporters._otel_histogram import Buckets
from memexport.exporters._otel_metrics import SCOPE, Instrument, Metric
from memexport.exporters._otel_snapshot import Attributes, Numbers
from memexport.exporters._otlp_frames import Frame, Histogram
from memexport.exporters._otlp_resource import recorded_facts, version
from memexport.exporters._text import Fragments
from memexport.model import RecordingInfo

_CUMULATIVE: Final = 2


class LineEncoder:
    """Encodes the frames of one recording.

    Args:
        begin_ns: when the recording began.
    """

    def __init__(self, info: RecordingInfo, begin_ns: int) -> None:
        self._info = info
        self._begin_ns = begin_ns
        self._origins = Fragments(self._origin)
        self._templates: dict[tuple[int, Metric, int], str] = {}

    def encode(self, frames: Iterable[Frame]) -> str:
        """A line with the MetricsData of these frames, which are of different processes."""
        return f'{{"resourceMetrics":[{",".join(map(self._process, frames))}]}}\n'

    def _process(self, frame: Frame) -> str:
        metrics = [self._numbers(frame, numbers) for numbers in frame.numbers]
        metrics += [self._histogram(frame, histogram) for histogram in frame.histograms]
        return f"{self._origins[frame.rank]}{','.join(metrics)}]}}]}}"

    def _origin(self, rank: int) -> str:
        """The ResourceMetrics of a process up to its metrics."""
        resource = _text({"attributes": _key_values(recorded_facts(self._info, rank).items())})
        scope = _text({"name": SCOPE, "version": version()})
        return f'{{"resource":{resource},"scopeMetrics":[{{"scope":{scope},"metrics":['

    def _numbers(self, frame: Frame, numbers: Numbers) -> str:
        key = (frame.rank, numbers.metric, len(numbers.attributes))
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._template(numbers.metric, numbers.attributes)
        time = str(frame.time_unix_ns)
        return template % tuple(part for value in numbers.values.tolist() for part in (time, value))

    def _template(self, metric: Metric, attributes: Sequence[Attributes]) -> str:
        """The metric with a place for the time and the value of each point, in turn."""
        is_gauge = metric.instrument is Instrument.GAUGE
        since = "" if is_gauge else f'"startTimeUnixNano":"{self._begin_ns}",'
        points = [
            f'{{"attributes":{_quoted(of_series)},{since}"timeUnixNano":"%s","asInt":"%d"}}'
            for of_series in attributes
        ]
        monotonic = "true" if metric.instrument is Instrument.COUNTER else "false"
        options = "" if is_gauge else f',"aggregationTemporality":{_CUMULATIVE},"isMonotonic":{monotonic}'
        kind = "gauge" if is_gauge else "sum"
        described = _described(metric).replace("%", "%%")
        return f'{{{described},"{kind}":{{"dataPoints":[{",".join(points)}]{options}}}}}'

    def _histogram(self, frame: Frame, histogram: Histogram) -> str:
        points = [
            self._histogram_point(frame, attributes, buckets)
            for attributes, buckets in zip(histogram.attributes, histogram.buckets, strict=True)
        ]
        data = f'{{"dataPoints":[{",".join(points)}],"aggregationTemporality":{_CUMULATIVE}}}'
        return f'{{{_described(histogram.metric)},"exponentialHistogram":{data}}}'

    def _histogram_point(self, frame: Frame, attributes: Attributes, buckets: Buckets) -> str:
        point: dict[str, Any] = {
            "attributes": _key_values(attributes),
            "startTimeUnixNano": str(self._begin_ns),
            "timeUnixNano": str(frame.time_unix_ns),
            "count": str(buckets.count),
            "sum": buckets.sum,
            "scale": buckets.scale,
            "zeroCount": str(buckets.zeros),
        }
        if buckets.counts:
            point["positive"] = {"offset": buckets.offset, "bucketCounts": list(map(str, buckets.counts))}
        return _text({**point, "min": buckets.min, "max": buckets.max})


def _described(metric: Metric) -> str:
    return _text({"name": metric.name, "description": metric.description, "unit": metric.unit})[1:-1]


def _quoted(attributes: Attributes) -> str:
    return _text(_key_values(attributes)).replace("%", "%%")


def _key_values(items: Iterable[tuple[str, str | int]]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in items
    ]


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
