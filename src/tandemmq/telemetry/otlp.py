"""Encodes samples as OTLP metrics, in requests of at most `POINTS_MAX` data points (extra `otel`).

Names: those of RocketMQ's instruments, to which Prometheus adds the unit: `rocketmq_consumer_lag_latency`
       with the unit `milliseconds`. Our own metrics keep their whole name. An empty label is left out, and a
       label that begins with `is_` is a boolean, as RocketMQ's are, if its value is `true` or `false`.
Strategy: samples are encoded on the loop, a few at a time, because a histogram continues to count. With
       deltas a counter or a histogram is the difference to the last export that arrived
       (`OtlpEncoder.commit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric as OtlpMetric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from tandemmq.telemetry.metrics import Histogram, Metric, MetricKind, Sample

POINTS_MAX: Final = 1_000
"""The most data points of one request, as in RocketMQ."""

_WHOLE_NAMES: Final = ("rocketmq_storage_flush_behind_bytes", "rocketmq_storage_dispatch_behind_bytes")
_UNITS: Final = {
    "_milliseconds": ("ms", "milliseconds"),
    "_microseconds": ("us", "us"),
    "_seconds": ("s", "seconds"),
    "_bytes": ("By", "bytes"),
}
"""The units by the endings of names: of our metrics, and of those with RocketMQ's names."""

Values = tuple[float, ...]
"""The value of a counter; of a histogram its counts, then its sum."""


def instrument_of(metric: Metric) -> tuple[str, str]:
    """Returns the name and the unit of the instrument whose Prometheus name a metric has."""
    for suffix, (unit, unit_of_rocketmq) in _UNITS.items():
        if metric.name.endswith(suffix) and metric.name not in _WHOLE_NAMES:
            if metric.name.startswith("tandemmq_"):
                return metric.name, unit
            return metric.name.removesuffix(suffix), unit_of_rocketmq
    return metric.name, ""


class OtlpEncoder:
    """Encodes the exports of one process, whose first moment is `began_ns`."""

    def __init__(self, *, resource: Mapping[str, str], scope: str, is_delta: bool, began_ns: int) -> None:
        self._resource = Resource(attributes=[_text(name, value) for name, value in resource.items()])
        self._scope = InstrumentationScope(name=scope)
        self._is_delta = is_delta
        self._temporality = (
            AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
            if is_delta
            else AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        )
        self._labels = [_text("aggregation", "delta")] if is_delta else []
        self._kept: dict[tuple[Metric, tuple[str, ...]], Values] = {}
        self._kept_ns = self._began_ns = began_ns

    def begin(self, now_ns: int) -> OtlpExport:
        """Returns an empty export of this moment."""
        since_ns = self._kept_ns if self._is_delta else self._began_ns
        return OtlpExport(self, since_ns=since_ns, now_ns=now_ns)

    def commit(self, export: OtlpExport) -> None:
        """Begins the next differences at an export that has arrived."""
        if self._is_delta:
            self._kept, self._kept_ns = export.read, export.now_ns

    # Called by an export.

    def new_request(self) -> ExportMetricsServiceRequest:
        request = ExportMetricsServiceRequest()
        of_resource = request.resource_metrics.add(resource=self._resource)
        of_resource.scope_metrics.add(scope=self._scope)
        return request

    def new_metric(self, request: ExportMetricsServiceRequest, metric: Metric) -> OtlpMetric:
        name, unit = instrument_of(metric)
        of_scope = request.resource_metrics[0].scope_metrics[0]
        found: OtlpMetric = of_scope.metrics.add(name=name, unit=unit, description=metric.text)
        if metric.kind is MetricKind.COUNTER:
            found.sum.aggregation_temporality = self._temporality
            found.sum.is_monotonic = True
        elif metric.kind is MetricKind.HISTOGRAM:
            found.histogram.aggregation_temporality = self._temporality
        return found

    def attributes(self, sample: Sample) -> list[KeyValue]:
        pairs = zip(sample.metric.labels, sample.labels, strict=True)
        return [*self._labels, *(_text(name, value) for name, value in pairs if value)]

    def since(self, sample: Sample, values: Values) -> Values:
        """Returns the values to export: with deltas what was added to those that arrived last."""
        before = self._kept.get((sample.metric, sample.labels))
        if before is None or len(before) != len(values):
            return values
        added = tuple(now - then for now, then in zip(values, before, strict=True))
        return values if min(added) < 0 else added  # a smaller value has begun anew


class OtlpExport:
    """The requests of one export. `read`: the values of its counters and histograms."""

    def __init__(self, encoder: OtlpEncoder, *, since_ns: int, now_ns: int) -> None:
        self.now_ns = now_ns
        self.read: dict[tuple[Metric, tuple[str, ...]], Values] = {}
        self.requests: list[ExportMetricsServiceRequest] = []
        self._encoder = encoder
        self._since_ns = since_ns
        self._metrics: dict[Metric, OtlpMetric] = {}
        self._room = 0

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            if not self._room:
                self.requests.append(self._encoder.new_request())
                self._metrics, self._room = {}, POINTS_MAX
            self._room -= 1
            metric = self._metrics.get(sample.metric)
            if metric is None:
                metric = self._encoder.new_metric(self.requests[-1], sample.metric)
                self._metrics[sample.metric] = metric
            self._add(metric, sample)

    def _add(self, metric: OtlpMetric, sample: Sample) -> None:
        value, attributes = sample.value, self._encoder.attributes(sample)
        if isinstance(value, Histogram):
            *counts, total = self._difference(sample, (*map(float, value.counts), value.total))
            metric.histogram.data_points.add(
                start_time_unix_nano=self._since_ns,
                time_unix_nano=self.now_ns,
                explicit_bounds=value.bounds,
                bucket_counts=map(int, counts),
                count=int(sum(counts)),
                sum=total,
                attributes=attributes,
            )
        elif sample.metric.kind is MetricKind.GAUGE:
            metric.gauge.data_points.add(time_unix_nano=self.now_ns, as_double=value, attributes=attributes)
        else:
            (added,) = self._difference(sample, (float(value),))
            metric.sum.data_points.add(
                start_time_unix_nano=self._since_ns,
                time_unix_nano=self.now_ns,
                as_double=added,
                attributes=attributes,
            )

    def _difference(self, sample: Sample, values: Values) -> Values:
        self.read[sample.metric, sample.labels] = values
        return self._encoder.since(sample, values)


def _text(name: str, value: str) -> KeyValue:
    found = KeyValue(key=name)
    if name.startswith("is_") and value in ("true", "false"):
        found.value.bool_value = value == "true"
    else:
        found.value.string_value = value
    return found
