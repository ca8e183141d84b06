"""Renders samples in Prometheus' text format, with the prometheus-client library.

`TextExporter` renders all samples at once. `SeriesText` is for families with thousands of series: it takes a
few samples at a time, and writes the text itself, in a fifth of the library's time.
The registry is separate and has one collector. The library's global registry, its locks and its metric
objects are not used, because every value is read at the scrape. The process's statistics come from the
library.
Knows not: the meaning of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tandemmq.telemetry.metrics import Histogram, Metric, MetricKind, Sample

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
NAMESPACE: Final = "tandemmq"

ReadAll = Callable[[], Iterable[Sample]]


class TextExporter(Collector):
    """Renders the samples that `read_all` returns."""

    def __init__(self, read_all: ReadAll) -> None:
        self._read_all = read_all
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace=NAMESPACE, registry=self._registry)

    def render(self) -> bytes:
        """Returns the whole text. Raises the errors of `read_all`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        readings: dict[Metric, list[Sample]] = {}
        for reading in self._read_all():
            readings.setdefault(reading.metric, []).append(reading)
        for metric, group in readings.items():
            yield _family(metric, group)

    def describe(self) -> list[Family]:
        """Returns an empty list: the library would otherwise read everything once at registration."""
        return []


class SeriesText:
    """The text of samples that arrive piece by piece; those of a piece mostly have the same labels."""

    def __init__(self) -> None:
        self._lines: dict[Metric, list[str]] = {}
        self._labels: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._label_text = ""

    def add(self, samples: Iterable[Sample]) -> None:
        for metric, value, labels in samples:
            lines = self._lines.get(metric)
            if lines is None:
                head = f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} {metric.kind.value}\n"
                lines = self._lines[metric] = [head]
            if self._labels[0] is not metric.labels or self._labels[1] is not labels:
                self._labels = metric.labels, labels
                self._label_text = _label_text(metric.labels, labels)
            text = self._label_text
            if isinstance(value, Histogram):
                lines.append(_histogram_text(metric.name, text, value))
            else:
                lines.append(f"{metric.name}{_braced(text)} {float(value)!r}\n")

    def render(self) -> bytes:
        """Returns the text of every family."""
        return "".join(line for lines in self._lines.values() for line in lines).encode()


def _label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _histogram_text(name: str, labels: str, histogram: Histogram) -> str:
    begin = f"{name}_bucket{{{labels}{',' if labels else ''}le="
    buckets = [f'{begin}"{bound}"}} {float(count)!r}\n' for bound, count in _buckets(histogram)]
    count, total, of_all = float(histogram.count), float(histogram.total), _braced(labels)
    return f"{''.join(buckets)}{name}_count{of_all} {count!r}\n{name}_sum{of_all} {total!r}\n"


def _family(metric: Metric, readings: list[Sample]) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        histograms = HistogramMetricFamily(metric.name, metric.text, labels=metric.labels)
        for reading in readings:
            assert isinstance(reading.value, Histogram), metric.name
            histograms.add_metric(reading.labels, _buckets(reading.value), reading.value.total)
        return histograms
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.text, labels=metric.labels)
    for reading in readings:
        assert not isinstance(reading.value, Histogram), metric.name
        assert len(reading.labels) == len(metric.labels), reading
        family.add_metric(reading.labels, reading.value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    return list(zip(bounds, histogram.cumulative(), strict=True))
